"""Some rows of a tensor that is left where it is: a memory map stays on the disk until a row is wanted."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The rows at ``index`` int [N] (on the CPU; None: all) of ``source`` [M, ...], without a copy of them."""

    source: Tensor
    index: Tensor | None = None

    def __len__(self) -> int:
        return len(self.source) if self.index is None else len(self.index)

    @property
    def shape(self) -> torch.Size:
        """As if the rows were one tensor, [N, ...]."""
        return torch.Size((len(self), *self.source.shape[1:]))

    @property
    def ndim(self) -> int:
        """Number of dimensions, that of the rows' among them."""
        return self.source.ndim

    @property
    def dtype(self) -> torch.dtype:
        """Type of the elements."""
        return self.source.dtype

    @property
    def nbytes(self) -> int:
        """What a copy of the rows would take."""
        return self.shape.numel() * self.source.element_size()

    def whole(self) -> Tensor:
        """The rows as one tensor [N, ...]: a copy, unless all are wanted."""
        return self.source if self.index is None else self.source[self.index]

    def places(self, index: Tensor) -> Tensor:
        """Where the rows at ``index`` int [B] are in the source: int [B]."""
        return index if self.index is None else self.index[index]

    def take(self, index: Tensor | slice) -> "Rows":
        """Those at ``index``, still without a copy."""
        if self.index is None:
            index = torch.arange(len(self))[index].contiguous() if isinstance(index, slice) else index
            return Rows(self.source, index)
        return Rows(self.source, self.index[index].contiguous())

    def split(self, count: int) -> Iterator[Tensor]:
        """Copies of up to ``count`` rows at a time."""
        if self.index is None:
            yield from self.source.split(count)
        else:
            for part in self.index.split(count):
                yield self.source[part]

    def to(self, device: torch.device) -> "Rows":
        """The rows on ``device``: themselves if they are there, else a copy of just them, made piece by piece."""
        if self.is_on(device):
            return self
        there = torch.empty(self.shape, dtype=self.dtype, device=device)
        done = 0
        for part in self.split(self.portion(2**28)):
            there[done : done + len(part)] = part
            done += len(part)
        return Rows(there)

    def is_on(self, device: torch.device) -> bool:
        """Whether the source is there (``cuda`` means any card)."""
        place = self.source.device
        return place.type == device.type and device.index in (None, place.index)

    def portion(self, limit: int) -> int:
        """How many rows fit ``limit`` bytes, at least one."""
        return max(1, limit // max(1, self.source[:1].nbytes))


def rows_of(source: Tensor, index: Tensor) -> Rows:
    """The rows of ``source`` at ``index`` int [N]; where that is all of them in order, nothing is gathered later."""
    all_of_them = len(index) == len(source) and bool((index == torch.arange(len(source))).all())
    return Rows(source, None if all_of_them else index)
