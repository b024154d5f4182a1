"""Read a pickle that may hold plain values and NumPy arrays, and nothing else.

A pickle is a program: loading one with the standard library runs whatever its author put in. CIFAR and
CLCIFAR are published as pickles, so they are read here with a short list of what may be named.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from complementary.errors import UserError


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Stands in for ``_codecs.encode``, which Python 2 compatible pickles use to carry bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes written as {encoding!r}")
    return text.encode("latin1")


def _allowed() -> dict[tuple[str, str], Callable[..., Any]]:
    # asked of NumPy itself, since the modules they live in are private and were renamed in NumPy 2
    numpy_names: dict[tuple[str, str], Any] = {
        ("multiarray", "_reconstruct"): np.zeros(1).__reduce__()[0],
        ("multiarray", "scalar"): np.float64(0).__reduce__()[0],
        ("numeric", "_frombuffer"): np.zeros(1).__reduce_ex__(5)[0],
    }
    names: dict[tuple[str, str], Callable[..., Any]] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _latin1,
    }
    for core in ("numpy.core", "numpy._core"):
        names |= {(f"{core}.{module}", name): made for (module, name), made in numpy_names.items()}
    return names


class _PlainUnpickler(pickle.Unpickler):
    allowed = _allowed()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return self.allowed[module, name]


def loads(content: bytes, name: str) -> Any:
    """Return the plain value pickled in ``content``; ``name`` is what errors call the file.

    Strings of Python 2 are read as Latin-1. Anything but plain values and NumPy arrays is refused
    before it can run.
    """
    try:
        return _PlainUnpickler(io.BytesIO(content), encoding="latin1").load()
    except pickle.UnpicklingError as problem:
        raise UserError(
            f"{name} is not a plain pickle of numbers, texts and arrays ({problem}), so it was not read: "
            "it could run code. Get the file again from its official source."
        ) from None
    except Exception as problem:  # a damaged pickle can fail in any way at all
        raise UserError(f"{name} is damaged ({type(problem).__name__}: {problem}). Get the file again.") from None
