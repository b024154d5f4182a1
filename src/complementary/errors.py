"""The exception for bad input, the checks that raise it, and imports that may fail."""

import difflib
import sys
from collections.abc import Iterable
from importlib import import_module, metadata
from typing import Any

PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn"}  # module -> package, where the names differ
EXTRAS = {  # module -> extra; others are in "cli"
    **{"ray": "ray", "pandas": "tables", "pyarrow": "tables", "timm": "encoders", "transformers": "encoders"},
    **{"onnx": "export", "onnxscript": "export", "onnxruntime": "export"},
}


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
        close = did_you_mean(found, choices)
        raise UserError(f"{what} {found!r} is not known{close}; choose one of: {', '.join(choices)}.", option)
    return found


def did_you_mean(found: str, choices: Iterable[str]) -> str:
    """`` (did you mean 'icm'?)`` if a choice is similar to what was found, else nothing."""
    close = difflib.get_close_matches(found, list(choices), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def require(holds: bool, option: str, found: object, wanted: str) -> None:
    """Raise a `UserError` about an option unless ``holds``."""
    if not holds:
        raise UserError(f"The option {option} is {found}, but it must be {wanted}.", option)


def install_command(extra: str) -> str:
    """How to install an extra, for messages. The package is on no index, so this needs a checkout."""
    return f"run pip install '.[{extra}]' in the checkout of complementary"


def import_optional(module: str, purpose: str) -> Any:
    """Import a module of an optional dependency, or raise a `UserError` that says how to install it."""
    try:
        return import_module(module)
    except ImportError:
        top = module.split(".")[0]
        package, extra = PACKAGES.get(top, top), EXTRAS.get(top, "cli")
        raise UserError(f"{purpose} needs {package}: {install_command(extra)}.") from None


def plugin_names(kind: str, wanted: str = "") -> list[str]:
    """Names of plug-ins: the entry points of the group ``complementary.KIND``, and ``wanted`` if it is importable.

    Args:
        kind: losses, mixers, encoders or datasets.
        wanted: A name; one of the form ``module:attribute`` is a plug-in without an entry point.
    """
    names = [point.name for point in metadata.entry_points(group=f"complementary.{kind}")]
    return [*names, wanted] if is_path(wanted) else names


def is_path(name: str) -> bool:
    """Whether a name has the form ``module:attribute``."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


def path_of(plugin: Any) -> str:
    """The name ``module:attribute`` of a function or class; raises if it cannot be imported by that name."""
    module, attribute = getattr(plugin, "__module__", ""), getattr(plugin, "__qualname__", type(plugin).__name__)
    if getattr(sys.modules.get(module), attribute, None) is not plugin:
        raise UserError(
            f"{attribute} cannot be stored in a configuration, because it is not defined at the top level of a module; "
            "define it there, with def or class."
        )
    return f"{module}:{attribute}"


def load_plugin(kind: str, name: str) -> Any:
    """Import a plug-in: an entry point of the group ``complementary.KIND``, or ``module:attribute``."""
    points = {point.name: point.value for point in metadata.entry_points(group=f"complementary.{kind}")}
    module, _, attribute = points.get(name, name).partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"The plug-in {name} ({kind}) cannot be loaded: {error}. It must be module:attribute of an installed "
            f"module, or an entry point of the group complementary.{kind}."
        ) from None
