"""Which device, and what computed a result."""

import platform

import numpy as np
import torch

import complementary
from complementary.errors import UserError


def choose_device(name: str) -> torch.device:
    """``auto`` takes a GPU if there is one; anything else is a torch device name."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise UserError(f"The device {name!r} cannot be used on this machine; use auto or cpu.") from None
    return device


def device_name(device: torch.device) -> str:
    """``NVIDIA H200``, or ``cpu (2 threads)``."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    count = torch.get_num_threads()
    return f"{device.type} ({count} thread{'s' * (count > 1)})"


def versions() -> dict[str, str]:
    """Versions of what computed the result."""
    return {
        "complementary": complementary.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
