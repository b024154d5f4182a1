"""Randomness that is addressed, not remembered.

Every draw in the package comes from a generator seeded by an *address*: the run's seed, a purpose
and counters such as epoch and step. Nothing has to be saved to resume a run, and two runs differ only
where their settings differ.

    >>> from complementary.rng import generator
    >>> import torch
    >>> a = torch.rand(2, generator=generator(0, "step", 3, 7))
    >>> b = torch.rand(2, generator=generator(0, "step", 3, 7))
    >>> bool((a == b).all())
    True
"""

import hashlib

import torch
from torch import Tensor


def address(seed: int, purpose: str, *counters: int) -> int:
    """Return a 63-bit integer that is the same for the same arguments on every machine."""
    text = "/".join([str(seed), purpose, *map(str, counters)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, purpose: str, *counters: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a fresh generator on ``device`` that starts at the given address."""
    return torch.Generator(device=device).manual_seed(address(seed, purpose, *counters))


def dirichlet(alpha: float, shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw weights from Dirichlet(alpha, ..., alpha) along the last axis of ``shape``, on ``like``'s device.

    Returns a float32 tensor of that shape whose last axis sums to 1. A gamma draw with a small shape
    underflows float32 (at alpha = .1 one in 6,000 does), so the draw is made with shape alpha + 1 and
    brought back in logarithms: log G(a) = log G(a + 1) + log(U) / a.
    """
    # torch.distributions takes no generator; the op below is what its Gamma calls, and it does.
    gamma = torch._standard_gamma(torch.full(shape, alpha + 1.0, device=like.device), generator=generator)
    uniform = torch.rand(shape, device=like.device, generator=generator).clamp_min(1e-12)
    return torch.softmax(gamma.log() + uniform.log() / alpha, dim=-1)


def beta(alpha: float, count: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw ``count`` values from Beta(alpha, alpha) as a float32 tensor [count] on ``like``'s device."""
    return dirichlet(alpha, (count, 2), like, generator)[:, 0]
