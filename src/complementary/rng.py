"""Random numbers with an address.

Every random draw of the package comes from a generator seeded by an *address*: the seed of the run, a purpose, and
counters such as epoch and step. A run can therefore be resumed without saving the state of a generator, and two runs
draw the same numbers wherever their configurations agree.

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
    """Hash a seed, a purpose and counters.

    Args:
        seed: Seed of the run.
        purpose: What the random numbers are for, such as ``"labels"``.
        *counters: Further numbers, such as epoch and step.

    Returns:
        An integer of 63 bits, the same on every machine.
    """
    text = "/".join([str(seed), purpose, *map(str, counters)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, purpose: str, *counters: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a new generator seeded by an address; the arguments are those of `address`, and the device."""
    return torch.Generator(device=device).manual_seed(address(seed, purpose, *counters))


_GLOBAL = threading.RLock()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global CPU generator inside a ``with`` block and restore its state afterwards.

    For code that takes no generator, such as the initialization of layers. Only one thread at a time can be inside.

    Args:
        seed: The seed.
    """
    with _GLOBAL, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def dirichlet(alpha: float, shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Draw weights from the symmetric Dirichlet distribution.

    For small alpha a gamma variable underflows in float32 (one in 6,000 at alpha = 0.1). Therefore the draw is made
    with alpha + 1 and converted in logarithms: log G(a) = log G(a + 1) + log(U) / a.

    Args:
        alpha: Parameter of the distribution, above 0.
        shape: Shape of the result; weights lie along the last axis.
        device: Device of the result.
        generator: Source of the random numbers; None uses the global one.

    Returns:
        float32 tensor of the given shape whose last axis sums to 1.
    """
    # torch.distributions takes no generator; this is the operation that its Gamma calls.
    gamma = torch._standard_gamma(torch.full(shape, alpha + 1.0, device=device), generator=generator)
    uniform = torch.rand(shape, device=device, generator=generator).clamp_min(1e-12)
    return torch.softmax(gamma.log() + uniform.log() / alpha, dim=-1)
