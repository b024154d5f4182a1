"""Batches that are prefetched from the host.

Datasets that do not fit the memory of the GPU are streamed. The order of the examples is known in advance, so a thread
gathers the rows of the next batches in pinned memory and copies them to the device on a separate CUDA stream:

    memory map -> pinned buffer -> buffer on the device -> step            three pairs of buffers are used in turn
"""

import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from complementary.data.rows import Rows
from complementary.engine.backend import Engine
from complementary.errors import UserError

BUFFERS = 3  # one in use, one being copied, one being filled
CHUNK_BYTES = 2**27  # largest chunk in evaluation
EVALUATION_BATCH, CPU_IMAGES = 2048, 128  # see `evaluation_batch`


class PrefetchedBatches:
    """Rows stay on the host; each batch is copied to the device ahead of its step.

    Args:
        rows: The examples of this process.
        device: Where the steps are computed.
        batch: Largest batch.
        plan: Step, counted from the start of the training -> the indices int [B] of that step and all later ones, on
            the CPU. It is called again only if steps are skipped (after a resume).
    """

    def __init__(self, rows: Rows, device: torch.device, batch: int, plan: Callable[[int], Iterator[Tensor]]) -> None:
        self.rows, self.device, self.largest, self.plan = rows, device, batch, plan
        self.prefetcher: Prefetcher | None = None
        self.next_step = 0

    def batch(self, step: int) -> Tensor:
        """The batch [B, ...] of that step, on the device; valid until the next call."""
        if self.prefetcher is None or step != self.next_step:
            self.close()
            self.prefetcher = Prefetcher(self.rows, self.plan(step), self.largest, self.device)
        self.next_step = step + 1
        return next(self.prefetcher)

    def close(self) -> None:
        """Stop prefetching."""
        if self.prefetcher is not None:
            self.prefetcher.close()
        self.prefetcher = None


def should_stream(parts: Iterable[Rows | Tensor | None], engine: Engine) -> bool:
    """Whether to stream inputs: as the engine says; auto: if they need more than half of the free GPU memory."""
    if engine.stream != "auto" or engine.device.type != "cuda":
        return engine.stream == "always"
    cached = torch.cuda.memory_reserved(engine.device) - torch.cuda.memory_allocated(engine.device)
    needed = sum(part.nbytes for part in parts if part is not None)
    return needed > (torch.cuda.mem_get_info(engine.device)[0] + cached) / 2


def evaluation_batch(inputs: Tensor | Rows, device: torch.device) -> int:
    """Number of examples that a network predicts at a time.

    Images on a CPU come in small batches, so that activations stay in its cache: on one core, the small CNN predicts
    4,000 images of 32 x 32 per second in batches of 128, and 1,600 in batches of 2,048.

    Args:
        inputs: The examples, [N, ...].
        device: Where the network computes.
    """
    return CPU_IMAGES if inputs.ndim == 4 and device.type == "cpu" else EVALUATION_BATCH


def chunks(
    inputs: Tensor | Rows, device: torch.device, batch: int | None = None, prefetch: bool | None = None
) -> Iterator[Tensor]:
    """Iterate over inputs on the device; each chunk is valid until the next one.

    Args:
        inputs: The examples, [N, ...].
        device: Where the chunks are needed.
        batch: Largest number of rows of a chunk; large rows come in smaller chunks. None: see `evaluation_batch`.
        prefetch: Whether a thread reads ahead; None: only if the inputs are not on the device.
    """
    rows = inputs if isinstance(inputs, Rows) else Rows(inputs)
    count = min(batch or evaluation_batch(rows, device), max(64, rows.rows_within(CHUNK_BYTES)))
    if prefetch is None:
        prefetch = not rows.is_on(device)
    return Prefetcher(rows, torch.arange(len(rows)).split(count), count, device) if prefetch else rows.split(count)


# --- the thread ---------------------------------------------------------------------------------------------------


class _Buffer:
    """A pair of buffers, pinned on the host and on the GPU; on a CPU both are the same."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.host = torch.empty(shape, dtype=dtype, pin_memory=self.stream is not None)
        self.device_rows, self.count = self.host, 0
        if self.stream is not None:
            self.device_rows = torch.empty(shape, dtype=dtype, device=device)
            self.stream.wait_stream(torch.cuda.current_stream(device))  # which may still use this memory
            self.device_rows.record_stream(self.stream)  # not to be freed during a copy
            self.copied, self.used = torch.cuda.Event(blocking=True), torch.cuda.Event()

    def fill(self, source: Tensor, positions: Tensor) -> None:
        """Gather the rows at ``positions`` int [B] and start copying them."""
        self.count = len(positions)
        if self.stream is not None:
            self.copied.synchronize()  # the last copy still reads the host buffer
        torch.index_select(source, 0, positions, out=self.host[: self.count])
        if self.stream is not None:
            with torch.cuda.stream(self.stream):
                self.stream.wait_event(self.used)
                self.device_rows[: self.count].copy_(self.host[: self.count], non_blocking=True)
                self.copied.record(self.stream)

    def rows(self) -> Tensor:
        """The rows on the device; the current stream waits for the copy."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device_rows.device).wait_event(self.copied)
        return self.device_rows[: self.count]

    def release(self) -> None:
        """Allow the buffer to be overwritten once the current stream has finished its work so far."""
        if self.stream is not None:
            self.used.record(torch.cuda.current_stream(self.device_rows.device))


class Prefetcher:
    """Iterator over batches of rows on the device, gathered and copied by a thread in advance.

    A batch is valid until the next one is requested. The thread ends with the plan, with `close`, or when the iterator
    is garbage-collected.

    Args:
        rows: The examples.
        plan: The index int [B] of each batch.
        largest: Largest batch.
        device: Where the batches are needed.
    """

    def __init__(self, rows: Rows, plan: Iterable[Tensor], largest: int, device: torch.device) -> None:
        self.free: queue.SimpleQueue[_Buffer | None] = queue.SimpleQueue()
        self.ready: queue.SimpleQueue[_Buffer | BaseException | None] = queue.SimpleQueue()
        self.current: _Buffer | None = None
        for buffer in [_Buffer((largest, *rows.shape[1:]), rows.dtype, device) for _ in range(BUFFERS)]:
            self.free.put(buffer)
        work = (rows, iter(plan), self.free, self.ready)
        self.thread = threading.Thread(target=_fill, args=work, name="prefetch", daemon=True)
        self.thread.start()
        self.stop = weakref.finalize(self, self.free.put, None)

    def __iter__(self) -> "Prefetcher":
        return self

    def __next__(self) -> Tensor:
        if self.current is not None:
            self.current.release()
            self.free.put(self.current)
        found, self.current = self.ready.get(), None
        if isinstance(found, _Buffer):
            self.current = found
            return found.rows()
        self.ready.put(found)  # for the next call
        if found is None:
            raise StopIteration
        reason = (str(found) or type(found).__name__).splitlines()[0]
        raise UserError(f"The inputs could not be read ({reason}); check that the dataset still exists.") from found

    def close(self) -> None:
        """Stop the thread and wait for it."""
        while not self.free.empty():
            self.free.get()
        self.stop()
        self.thread.join()


def _fill(
    rows: Rows,
    plan: Iterator[Tensor],
    free: "queue.SimpleQueue[_Buffer | None]",
    ready: "queue.SimpleQueue[_Buffer | BaseException | None]",
) -> None:
    """Fill one buffer after another; an error is passed on in place of a buffer."""
    try:
        for index in plan:
            buffer = free.get()
            if buffer is None:
                return
            buffer.fill(rows.source, rows.positions(index))
            ready.put(buffer)
        ready.put(None)
    except BaseException as error:
        ready.put(error)
