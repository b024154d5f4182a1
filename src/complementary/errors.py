"""The exception for bad input, and the checks that raise it."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn"}  # module -> package, where the names differ
EXTRAS = {"ray": "ray", "pandas": "tables", "pyarrow": "tables"}  # module -> extra; others are in "cli"


class UserError(ValueError):
    """Bad input. The message says what was found, what is required and what to do.

    Messages name options as the configuration does (``long_tail``). ``option`` is the one at fault, if it is a
    single one: the command line adds its spelling there (``--long-tail``).
    """

    def __init__(self, message: str, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


def one_of(what: str, found: str, allowed: Iterable[object], option: str | None = None) -> str:
    """Return ``found`` if ``allowed`` contains it; raise a `UserError` that lists the choices otherwise."""
    choices = [str(a) for a in allowed]
    if found not in choices:
        raise UserError(f"{what} {found!r} is not known; choose one of: {', '.join(choices)}.", option)
    return found


def require(holds: bool, option: str, found: object, wanted: str) -> None:
    """Raise a `UserError` about an option unless ``holds``."""
    if not holds:
        raise UserError(f"The option {option} is {found}, but it must be {wanted}.", option)


def import_optional(module: str, purpose: str) -> Any:
    """Import a module of an optional dependency, or raise a `UserError` that says how to install it."""
    try:
        return import_module(module)
    except ImportError:
        top = module.split(".")[0]
        package, extra = PACKAGES.get(top, top), EXTRAS.get(top, "cli")
        raise UserError(f"{purpose} needs {package}: pip install 'complementary[{extra}]'.") from None
