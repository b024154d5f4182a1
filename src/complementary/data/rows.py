"""Some rows of a tensor without a copy: a memory map stays on the disk until a row is needed."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The rows at ``index`` of ``source``, without a copy.

    Attributes:
        source: Tensor [M, ...].
        index: Positions in the source, int [N], on the CPU; None: all rows.
    """

    source: Tensor
    index: Tensor | None = None

    def __len__(self) -> int:
        return len(self.source) if self.index is None else len(self.index)

    @property
    def shape(self) -> torch.Size:
        """Shape of the rows as one tensor, [N, ...]."""
        return torch.Size((len(self), *self.source.shape[1:]))

    @property
    def ndim(self) -> int:
        return self.source.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.source.dtype

    @property
    def nbytes(self) -> int:
        """Size of a copy of the rows."""
        return self.shape.numel() * self.source.element_size()

    def whole(self) -> Tensor:
        """The rows as one tensor [N, ...]: a copy, unless they are all rows."""
        return self.source if self.index is None else self.source[self.index]

    def positions(self, index: Tensor) -> Tensor:
        """Positions in the source of the rows at ``index`` int [B] -> int [B]."""
        return index if self.index is None else self.index[index]

    def take(self, index: Tensor | slice) -> "Rows":
        """The rows at ``index``, without a copy."""
        if self.index is None:
            index = torch.arange(len(self))[index].contiguous() if isinstance(index, slice) else index
            return Rows(self.source, index)
        return Rows(self.source, self.index[index].contiguous())

    def split(self, count: int) -> Iterator[Tensor]:
        """Iterate over copies of up to ``count`` rows."""
        if self.index is None:
            yield from self.source.split(count)
        else:
            for part in self.index.split(count):
                yield self.source[part]

    def to(self, device: torch.device) -> "Rows":
        """The rows on ``device``: unchanged if they are there, else a copy of only these rows, made in parts."""
        if self.is_on(device):
            return self
        copy = torch.empty(self.shape, dtype=self.dtype, device=device)
        done = 0
        for part in self.split(self.rows_within(2**28)):
            copy[done : done + len(part)] = part
            done += len(part)
        return Rows(copy)

    def is_on(self, device: torch.device) -> bool:
        """Whether the source is on ``device`` (``cuda``: on any GPU)."""
        place = self.source.device
        return place.type == device.type and device.index in (None, place.index)

    def rows_within(self, size: int) -> int:
        """Number of rows that fit ``size`` bytes, at least one."""
        return max(1, size // max(1, self.source[:1].nbytes))


def rows_of(source: Tensor, index: Tensor) -> Rows:
    """The rows of ``source`` at ``index`` int [N]; if these are all rows in order, no index is needed."""
    everything = len(index) == len(source) and bool((index == torch.arange(len(source))).all())
    return Rows(source, None if everything else index)
