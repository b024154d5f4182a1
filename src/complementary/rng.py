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

import contextlib
import hashlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor


def address(seed: int, purpose: str, *counters: int) -> int:
    """Return a 63-bit integer that is the same for the same arguments on every machine."""
    text = "/".join([str(seed), purpose, *map(str, counters)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, purpose: str, *counters: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a fresh generator on ``device`` that starts at the given address."""
    return torch.Generator(device=device).manual_seed(address(seed, purpose, *counters))


_GLOBAL = threading.Lock()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's global CPU stream starts at ``seed`` inside and is as before afterwards; one thread at a time.

    For code that takes no generator, such as the initialisation of layers.
    """
    with _GLOBAL, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def dirichlet(alpha: float, shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Draw weights from Dirichlet(alpha, ..., alpha) along the last axis of ``shape``.

    Returns a float32 tensor of that shape whose last axis sums to 1. A gamma draw with a small shape
    underflows float32 (at alpha = .1 one in 6,000 does), so the draw is made with shape alpha + 1 and
    brought back in logarithms: log G(a) = log G(a + 1) + log(U) / a.
    """
    # torch.distributions takes no generator; the op below is what its Gamma calls, and it does.
    gamma = torch._standard_gamma(torch.full(shape, alpha + 1.0, device=device), generator=generator)
    uniform = torch.rand(shape, device=device, generator=generator).clamp_min(1e-12)
    return torch.softmax(gamma.log() + uniform.log() / alpha, dim=-1)
