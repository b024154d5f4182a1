"""Data-parallel training in several processes, started by ``torchrun``.

Each process has its own shard of the training examples. After every backward pass one all-reduce averages the
gradients, the loss and the batch-norm statistics, so all processes hold the same weights. Rank 0 alone evaluates and
writes files.

If a process dies, torchrun stops the others. They exit with one message, and the run can be resumed.
"""

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn

from complementary.engine.backend import choose_device
from complementary.errors import UserError

TIMEOUT = timedelta(minutes=20)  # of a collective: the other processes wait while rank 0 evaluates
LOST = "Another process of this training failed or was stopped; resume continues from the last checkpoint."


class LostProcess(UserError):
    """Another process of the group is gone."""


class ProcessGroup:
    """The processes of one training, seen from one of them.

    Args:
        rank: Number of this process.
        world_size: Number of processes.
        device: Where collectives take place.

    Attributes:
        is_main: Whether this process evaluates, logs and writes files.
        address: Part of the address of every random draw, so that processes draw different numbers.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, device: torch.device | None = None) -> None:
        self.rank, self.world_size, self.device = rank, world_size, device or torch.device("cpu")
        self.is_main = rank == 0
        self.address: tuple[int, ...] = () if world_size == 1 else (rank, world_size)

    def shard(self) -> slice:
        """The examples of this process: every ``world_size``-th, starting at ``rank``."""
        return slice(self.rank, None, self.world_size)

    def global_rows(self, index: Tensor) -> Tensor:
        """Positions among the examples of all processes of the examples of this process at ``index``, int [B]."""
        return index * self.world_size + self.rank

    def local_batch(self, batch: int) -> int:
        """Number of examples of a batch that this process computes."""
        if batch % self.world_size:
            near = max(2, round(batch / self.world_size)) * self.world_size
            raise UserError(
                f"A batch of {batch} cannot be divided among {self.world_size} processes; use a batch of {near}.",
                "batch",
            )
        return batch // self.world_size

    # --- collectives ------------------------------------------------------------------------------------------------

    def average_gradients(
        self, network: nn.Module, loss: Tensor, weight: Tensor | None = None, others: Iterable[nn.Parameter] = ()
    ) -> Tensor:
        """Average gradients, loss and batch-norm statistics over all processes, in place.

        One all-reduce of a flat vector of fixed shape, without synchronization, so it can be captured in a CUDA graph.

        Args:
            network: Its gradients are averaged by ``weight``, its floating-point buffers equally.
            loss: The loss of this process, a scalar.
            weight: Number of examples in the loss, a scalar; None: 1. The result is the mean over the whole batch.
            others: Further parameters, whose gradients are averaged as those of the network.

        Returns:
            The averaged loss.
        """
        if self.world_size == 1:
            return loss
        gradients = [p.grad for p in (*network.parameters(), *others) if p.grad is not None]
        statistics = [b for b in network.buffers() if b.is_floating_point()]
        weight = torch.ones_like(loss) if weight is None else weight.to(loss.dtype)
        weighted = _flatten([*gradients, loss]) * weight
        sums = _flatten([weighted, *statistics, weight])
        self.all_reduce(sums)
        _unflatten(sums[: len(weighted)] / sums[-1].clamp_min(1e-12), [*gradients, loss])
        _unflatten(sums[len(weighted) : -1] / self.world_size, statistics)
        return loss

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum a tensor over all processes, in place."""
        try:
            distributed.all_reduce(tensor)
        except RuntimeError as error:
            if tensor.device.type == "cuda":  # may be a failed capture, which the engine handles
                raise
            raise LostProcess(LOST) from error

    def broadcast(self, value: Tensor) -> Tensor:
        """The ``value`` of rank 0, in all processes; same shape and type."""
        if self.world_size == 1:
            return value
        sent = value.to(self.device) if self.is_main else torch.zeros_like(value, device=self.device)
        self.all_reduce(sent)
        return sent.to(value.device)

    def all_gather(self, own: Tensor, count: int) -> Tensor:
        """The rows of all processes: ``own`` [n, ...] are those of `shard` -> [count, ...]."""
        if self.world_size == 1:
            return own
        rows = torch.zeros(count, *own.shape[1:], dtype=own.dtype, device=self.device)
        rows[self.shard()] = own.to(self.device)
        self.all_reduce(rows)
        return rows.to(own.device)

    def all_gather_batch(self, own: Tensor) -> Tensor:
        """The rows of a batch of all processes, in order of rank: [b, ...] -> [B, ...]."""
        if self.world_size == 1:
            return own
        rows = torch.zeros(self.world_size, *own.shape, dtype=own.dtype, device=own.device)
        rows[self.rank] = own
        self.all_reduce(rows)
        return rows.flatten(0, 1)

    def own_part(self, batch: Tensor) -> Tensor:
        """The rows of this process in what `all_gather_batch` returned: [B, ...] -> [b, ...]."""
        return batch.chunk(self.world_size)[self.rank]

    def barrier(self) -> None:
        """Wait for all other processes."""
        self.broadcast(torch.zeros(1))

    def check_equal(self, number: int, what: str) -> None:
        """Raise unless all processes have the same number (below 2^63), which identifies ``what``."""
        if int(self.broadcast(torch.tensor(number))) != number:
            raise UserError(
                f"Process {self.rank} has another {what} than process 0; start all machines with the same command, "
                "package and data, and with a folder that they share."
            )


SINGLE_PROCESS = ProcessGroup()


def _flatten(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def _unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy the parts of ``flat`` into the tensors, whatever their memory format."""
    with torch.no_grad():
        for part, tensor in zip(flat.split([t.numel() for t in tensors]), tensors, strict=True):
            tensor.copy_(part.view(tensor.shape))


# --- torchrun -----------------------------------------------------------------------------------------------------


def _under_torchrun() -> bool:
    """Whether torchrun started this process together with others."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def local_device(name: str) -> str:
    """The device of this process: under torchrun every process of a machine has its own GPU."""
    if not _under_torchrun() or name == "cpu" or not torch.cuda.is_available():
        return name
    if name not in ("auto", "cuda"):
        raise UserError(f"The device {name} would be shared by all processes; use cuda, cpu or auto.", "device")
    place, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if place >= count:
        raise UserError(
            f"torchrun started {os.environ['LOCAL_WORLD_SIZE']} processes on this machine, but there are {count} GPUs; "
            f"start {count}, or use the device cpu.",
            "device",
        )
    return f"cuda:{place}"


@contextlib.contextmanager
def join_processes(device: str) -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started; without torchrun there is a single process.

    If the processes fail, only the first one reports its error; the others exit silently with status 2. torchrun
    terminates the remaining processes as soon as one has ended.

    Args:
        device: The device that the user asked for.
    """
    if not _under_torchrun():
        yield SINGLE_PROCESS
        return
    signal.signal(signal.SIGTERM, _on_terminate)
    try:
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        processes = connect(rank, world_size, choose_device(local_device(device)))
        yield processes
        processes.barrier()
    except Exception as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun may send it while the error is reported
        if not _first_to_report():
            raise SystemExit(2) from None
        if isinstance(error, distributed.DistError):
            raise LostProcess(LOST) from error
        raise
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    disconnect()


def _on_terminate(*_: Any) -> None:
    """torchrun terminates this process because another one has failed."""
    raise LostProcess(LOST)


def _first_to_report() -> bool:
    """Whether no other process has reported an error; counted in the store of torchrun."""
    try:
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = distributed.TCPStore(*address, is_master=False, timeout=timedelta(seconds=10))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return int(store.add(f"complementary/{attempt}/reports", 1)) == 1
    except RuntimeError:  # the store is gone, and with it the machine of rank 0
        return True


def connect(rank: int, world_size: int, device: torch.device, address: str = "env://") -> ProcessGroup:
    """Initialize the process group: gloo on a CPU, NCCL on GPUs. Returns when all processes have joined."""
    options: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(
        backend, init_method=address, rank=rank, world_size=world_size, timeout=TIMEOUT, **options
    )
    return ProcessGroup(rank, world_size, device)


def disconnect() -> None:
    """Leave the process group."""
    distributed.destroy_process_group()
