"""One training in several processes, started by ``torchrun``: each has its own part of the data.

What the processes do together is little: after the backward pass one sum over all of them, of the gradients, the
loss and the running statistics, so that all hold the same network after every step. Process 0 alone evaluates and
writes. If one dies, the others say so, once, and stop. Without torchrun there is one process and nothing of this.

Notice that another process of a training is gone, though the main thread is deep in a wait for it.

A thread looks once a second: has torchrun told us to end (it does so when a process died)? Does the next process
still count its heartbeats in the store? Is the store still there? If not, the main thread gets a few seconds to
stop by itself; then this one says the sentence and ends the process.
"""

import contextlib
import datetime
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from complementary.engine.backend import choose_device
from complementary.errors import UserError

TIMEOUT = datetime.timedelta(minutes=20)  # of a collective: process 0 may evaluate that long while the others wait
LOST = (
    "Another process of this training died or was stopped, so this one stops too; the same torchrun command with "
    "--resume goes on from the last checkpoint."
)


class ProcessGroup:
    """The processes of one training, seen from one of them. ``rank``: which one; ``size``: how many there are."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | None = None) -> None:
        self.rank, self.size, self.device = rank, size, device or torch.device("cpu")

    @property
    def is_main(self) -> bool:
        """Whether this process evaluates, writes and speaks."""
        return self.rank == 0

    @property
    def address(self) -> tuple[int, ...]:
        """What tells this process's random draws from those of the others; nothing if there are none."""
        return () if self.size == 1 else (self.rank, self.size)

    def part(self) -> slice:
        """This process's examples: every ``size``-th, from ``rank`` on."""
        return slice(self.rank, None, self.size)

    def share(self, batch: int) -> int:
        """This process's part of a batch."""
        if batch % self.size:
            near = max(2, round(batch / self.size)) * self.size
            raise UserError(f"A batch of {batch} cannot be shared by {self.size} processes; pass --batch {near}.")
        return batch // self.size

    # --- what all do together -----------------------------------------------------------------------

    def average(self, network: nn.Module, loss: Tensor, weight: Tensor | None = None) -> Tensor:
        """Average gradients and loss over all processes by their ``weight``, running statistics equally -> the loss.

        One sum of one flat vector, of fixed shape, without a wait for the device: it can be captured. The weight is
        the number of examples in the loss, a scalar, so that the result is the mean over the whole batch.
        """
        if self.size == 1:
            return loss
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        statistics = [b for b in network.buffers() if b.is_floating_point()]
        weight = torch.ones_like(loss) if weight is None else weight.to(loss.dtype)
        weighted = _flat([*gradients, loss]) * weight
        sums = _flat([weighted, *statistics, weight])
        self._sum(sums)
        _unpack(sums[: len(weighted)] / sums[-1].clamp_min(1e-12), [*gradients, loss])
        _unpack(sums[len(weighted) : -1] / self.size, statistics)
        return loss

    def broadcast(self, value: Tensor) -> Tensor:
        """What process 0 has in place of ``value``, in all processes; same shape and type."""
        if self.size == 1:
            return value
        said = value.to(self.device) if self.is_main else torch.zeros_like(value, device=self.device)
        self._sum(said)
        return said.to(value.device)

    def all_gather(self, own: Tensor, count: int) -> Tensor:
        """The rows of all processes, ``count`` in all, each at its place; ``own`` [n, ...]: those of `part`."""
        if self.size == 1:
            return own
        whole = torch.zeros(count, *own.shape[1:], dtype=own.dtype, device=self.device)
        whole[self.part()] = own.to(self.device)
        self._sum(whole)
        return whole.to(own.device)

    def barrier(self) -> None:
        """Wait for all the others."""
        self.broadcast(torch.zeros(1))

    def check_same(self, number: int, what: str) -> None:
        """Raise unless all processes give the same number (below 2^63), which stands for ``what``."""
        if int(self.broadcast(torch.tensor(number))) != number:
            raise UserError(
                f"Process {self.rank} has {what} other than process 0; give all machines the same command, package, "
                "data and a folder that they share."
            )

    def _sum(self, flat: Tensor) -> None:
        """Sum over all processes, in place."""
        from torch import distributed

        try:
            distributed.all_reduce(flat)
        except RuntimeError as error:
            if flat.device.type == "cuda":  # may be a failure to capture, from which the engine knows a way out
                raise
            raise Lost(LOST) from error


class Lost(UserError):
    """Another process is gone."""


SINGLE_PROCESS = ProcessGroup()


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def _unpack(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Put the parts of ``flat`` into the tensors, in place, whatever their memory format."""
    with torch.no_grad():
        for part, tensor in zip(flat.split([t.numel() for t in tensors]), tensors, strict=True):
            tensor.copy_(part.view(tensor.shape))


# --- under torchrun -------------------------------------------------------------------------------


def under_torchrun() -> bool:
    """Whether torchrun started this process together with others."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def local_device(name: str) -> str:
    """The device of this process where the user said ``name``: every process of a machine has a card of its own."""
    if not under_torchrun() or name == "cpu" or not torch.cuda.is_available():
        return name
    if name not in ("auto", "cuda"):
        raise UserError(f"--device {name} would be one device for all processes; under torchrun say cuda, cpu or auto.")
    place, cards = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if place >= cards:
        raise UserError(
            f"torchrun started {os.environ['LOCAL_WORLD_SIZE']} processes here, but there are {cards} GPUs; pass "
            f"--nproc-per-node {cards}, or --device cpu."
        )
    return f"cuda:{place}"


@contextlib.contextmanager
def joined(who: str, device: str) -> Iterator[ProcessGroup]:
    """The processes that torchrun started, or one process alone. ``who``: the command, as in ``cll train``.

    Of all the sentences that the processes might end with, only the first is said.
    """
    if not under_torchrun():
        yield SINGLE_PROCESS
        return
    pass

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    watch = Watch(who, rank, size)
    try:
        processes = connect(rank, size, choose_device(local_device(device)))
        yield processes
        processes.barrier()
    except Exception as error:
        watch.end_soon()
        if not watch.may_speak():
            raise SystemExit(2) from None
        if isinstance(error, _failures()):
            raise UserError(LOST) from error
        raise
    watch.close()
    disconnect()


def connect(rank: int, size: int, device: torch.device, address: str = "env://") -> ProcessGroup:
    """Become process ``rank`` of ``size``; returns once all are there. Gloo on a CPU, NCCL on GPUs."""
    from torch import distributed

    options: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, init_method=address, rank=rank, world_size=size, timeout=TIMEOUT, **options)
    return ProcessGroup(rank, size, device)


def disconnect() -> None:
    """Leave the processes."""
    from torch import distributed

    distributed.destroy_process_group()


def _failures() -> tuple[type[BaseException], ...]:
    from torch import distributed

    return Lost, distributed.DistError


GRACE = 5.0  # seconds for the main thread to end in order
PATIENCE = 60.0  # seconds without a heartbeat until a process counts as gone


class Watch:
    """The thread, from its start in process ``rank`` of ``size`` on."""

    def __init__(self, who: str, rank: int, size: int) -> None:
        self.who, self.rank, self.size = who, rank, size
        self.ears, self.mouth = _store(), _store()  # a client serves one thread at a time
        self.told, write = os.pipe()
        os.set_blocking(write, False)
        signal.signal(signal.SIGTERM, lambda *_: None)  # what counts is the byte that arrives in the pipe
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.ending: float | None = None
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self.thread.start()

    def may_speak(self) -> bool:
        """Whether no other process has said yet why the training ends; then none will after this one."""
        try:
            return int(self.mouth.add("spoken", 1)) == 1
        except RuntimeError:  # the store is gone, and with it whoever could have spoken
            return True

    def end_soon(self) -> None:
        """The main thread is ending: if it gets stuck on its way, end the process."""
        self.ending = self.ending or time.monotonic()

    def close(self) -> None:
        """All went well: watch no longer."""
        self.closed.set()
        self.thread.join()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _watch(self) -> None:
        neighbour, beats, changed = (self.rank + 1) % self.size, 0, time.monotonic()
        while not self.closed.is_set():
            if select.select([self.told], [], [], 1.0)[0] and signal.SIGTERM in os.read(self.told, 100):
                self.end_soon()
            try:
                self.ears.add(f"beat/{self.rank}", 1)
                heard = int(self.ears.add(f"beat/{neighbour}", 0))
            except RuntimeError:
                self.end_soon()
                heard = -1
            if heard != beats:
                beats, changed = heard, time.monotonic()
            if beats and time.monotonic() - changed > PATIENCE:  # it may take its time to start
                self.end_soon()
            if self.ending is not None and time.monotonic() - self.ending > GRACE and not self.closed.is_set():
                self._end()

    def _end(self) -> NoReturn:
        if self.may_speak():
            print(f"{self.who}: {LOST}", file=sys.stderr, flush=True)
        os._exit(2)


def _store() -> Any:
    """A new client of the store that torchrun keeps for its processes."""
    from torch import distributed

    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    client = distributed.TCPStore(*place, is_master=False, timeout=timedelta(seconds=PATIENCE))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return distributed.PrefixStore(f"complementary/{attempt}", client)
