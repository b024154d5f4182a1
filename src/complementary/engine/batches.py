"""Where a step's raw examples come from: rows that lie on the device, or rows read ahead from a memory map.

A set that does not fit the card stays where it is. A thread gathers the rows of the next batches, whose order is
known in advance, into pinned memory; they are copied on a stream of their own while the card computes:

    memory map -> pinned buffer -> buffer on the device -> step            three such pairs of buffers take turns
"""

import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from complementary.data.rows import Rows
from complementary.engine.backend import Engine
from complementary.errors import UserError

DEPTH = 3  # buffers: one in use, one on its way, one being gathered
CHUNK = 2**27  # bytes of a piece in evaluation, at most, and 2,048 rows: as many as small images always had


class BatchSource(Protocol):
    """What gives a step its raw examples."""

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """What that step of the training must be handed besides its index: the raw batch, or nothing."""

    def find(self, index: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor]:
        """(inputs [M, ...], where in them the examples at ``index`` int [B] are, int [B]); batch: what `batch` gave."""

    def close(self) -> None:
        """Stop what works ahead, if anything does."""


class ResidentBatches:
    """Rows on the device: a batch is an index, taken inside the step."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """Nothing."""
        return ()

    def find(self, index: Tensor, batch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """All rows, and where those at ``index`` int [B] are."""
        return self.rows.source, self.rows.places(index)

    def close(self) -> None:
        """Nothing works ahead."""


class PrefetchedBatches:
    """Rows that stay where they are; batches are brought to the device ahead of their step.

    plan: step, counted from the start of the training -> the indices int [B] of that step and all later ones, on the
    CPU. It is asked again only where a step is not the one that follows (after a resume).
    """

    def __init__(self, rows: Rows, device: torch.device, batch: int, plan: Callable[[int], Iterator[Tensor]]) -> None:
        self.rows, self.device, self.largest, self.plan = rows, device, batch, plan
        self.ahead: Ahead | None = None
        self.next_step = 0

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """The raw batch [B, ...] of that step, on the device; good until the next call."""
        if self.ahead is None or step != self.next_step:
            self.close()
            self.ahead = Ahead(self.rows, self.plan(step), self.largest, self.device)
        self.next_step = step + 1
        return (next(self.ahead),)

    def find(self, index: Tensor, batch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The batch itself; without one (outside of training) the rows are fetched now."""
        if batch is None:
            batch = self.rows.source[self.rows.places(index.cpu())].to(self.device)
        return batch, torch.arange(len(index), device=self.device)

    def close(self) -> None:
        """Stop the thread."""
        if self.ahead is not None:
            self.ahead.close()
        self.ahead = None


def too_large(parts: Iterable[Rows | Tensor | None], engine: Engine) -> bool:
    """Whether inputs are to be streamed: if told so, or by themselves if they need half of the free memory."""
    if engine.stream != "auto" or engine.device.type != "cuda":
        return engine.stream == "always"
    kept = torch.cuda.memory_reserved(engine.device) - torch.cuda.memory_allocated(engine.device)  # free, but for us
    need = sum(part.nbytes for part in parts if part is not None)
    return need > (torch.cuda.mem_get_info(engine.device)[0] + kept) / 2


def pieces(
    inputs: Tensor | Rows, device: torch.device, batch: int = 2048, ahead: bool | None = None
) -> Iterator[Tensor]:
    """``inputs`` [N, ...] on the device, some rows at a time (each good until the next).

    ``ahead``: read by a thread; None: if they lie elsewhere.
    """
    rows = inputs if isinstance(inputs, Rows) else Rows(inputs)
    count = min(batch, max(64, rows.portion(CHUNK)))
    if ahead is None:
        ahead = not rows.is_on(device)
    return Ahead(rows, torch.arange(len(rows)).split(count), count, device) if ahead else rows.split(count)


# --- the thread -----------------------------------------------------------------------------------


class Slot:
    """A buffer on the host, pinned if the device is a GPU, and its twin there. On a CPU they are one."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.host = torch.empty(shape, dtype=dtype, pin_memory=self.stream is not None)
        self.there, self.count = self.host, 0
        if self.stream is not None:
            self.there = torch.empty(shape, dtype=dtype, device=device)
            self.stream.wait_stream(torch.cuda.current_stream(device))  # it may still be at work on this memory
            self.there.record_stream(self.stream)  # not to be given away while a copy is under way
            self.arrived, self.used = torch.cuda.Event(blocking=True), torch.cuda.Event()

    def fill(self, source: Tensor, places: Tensor) -> None:
        """Gather the rows at ``places`` int [B] and send them off."""
        self.count = len(places)
        if self.stream is not None:
            self.arrived.synchronize()  # until then the last copy reads the host's buffer
        torch.index_select(source, 0, places, out=self.host[: self.count])
        if self.stream is not None:
            with torch.cuda.stream(self.stream):
                self.stream.wait_event(self.used)
                self.there[: self.count].copy_(self.host[: self.count], non_blocking=True)
                self.arrived.record(self.stream)

    def rows(self) -> Tensor:
        """What was gathered; the stream of the caller waits for its arrival."""
        if self.stream is not None:
            torch.cuda.current_stream(self.there.device).wait_event(self.arrived)
        return self.there[: self.count]

    def release(self) -> None:
        """The caller's work so far is all that needs the rows."""
        if self.stream is not None:
            self.used.record(torch.cuda.current_stream(self.there.device))


class Ahead:
    """An iterator over pieces of ``rows`` on the device, gathered and copied by a thread before they are wanted.

    plan: the index int [B] of each piece, up to ``largest``. A piece is good until the next is asked for. The thread
    ends with the plan, with `close`, or with the iterator itself.
    """

    def __init__(self, rows: Rows, plan: Iterable[Tensor], largest: int, device: torch.device) -> None:
        self.free: queue.SimpleQueue[Slot | None] = queue.SimpleQueue()
        self.ready: queue.SimpleQueue[Slot | BaseException | None] = queue.SimpleQueue()
        self.current: Slot | None = None
        for slot in [Slot((largest, *rows.shape[1:]), rows.dtype, device) for _ in range(DEPTH)]:
            self.free.put(slot)
        work = (rows, iter(plan), self.free, self.ready)
        self.thread = threading.Thread(target=_fill, args=work, name="feed", daemon=True)
        self.thread.start()
        self.stop = weakref.finalize(self, self.free.put, None)

    def __iter__(self) -> "Ahead":
        return self

    def __next__(self) -> Tensor:
        if self.current is not None:
            self.current.release()
            self.free.put(self.current)
        found, self.current = self.ready.get(), None
        if isinstance(found, Slot):
            self.current = found
            return found.rows()
        self.ready.put(found)  # whoever asks again gets the same answer
        if found is None:
            raise StopIteration
        reason = (str(found) or type(found).__name__).splitlines()[0]
        raise UserError(
            f"The inputs could not be read ahead ({reason}); are the data still where they were?"
        ) from found

    def close(self) -> None:
        """Stop the thread and wait for it."""
        while not self.free.empty():
            self.free.get()
        self.stop()
        self.thread.join()


def _fill(
    rows: Rows,
    plan: Iterator[Tensor],
    free: "queue.SimpleQueue[Slot | None]",
    ready: "queue.SimpleQueue[Slot | BaseException | None]",
) -> None:
    """Fill slot after slot; what goes wrong is handed over in place of a slot."""
    try:
        for index in plan:
            slot = free.get()
            if slot is None:
                return
            slot.fill(rows.source, rows.places(index))
            ready.put(slot)
        ready.put(None)
    except BaseException as error:
        ready.put(error)
