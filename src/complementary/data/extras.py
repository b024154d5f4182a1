"""Optional packages, imported where they are needed, with a sentence where they are missing."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from complementary.errors import UserError


def need(module: str, purpose: str) -> Any:
    """Import ``module``, or say what it is wanted for and how to install it."""
    try:
        return import_module(module)
    except ImportError:
        package = {"PIL": "pillow"}.get(module.split(".")[0], module.split(".")[0])
        raise UserError(f"{purpose} needs {package}: pip install 'complementary[cli]'.") from None


def pillow_image() -> Any:
    """Pillow's ``Image`` module."""
    return need("PIL.Image", "Decoding pictures")


def rich_or_none(name: str) -> Callable[..., Any] | None:
    """A class of rich such as ``rich.table.Table``, or None where rich is not installed."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
    except ImportError:
        return None
