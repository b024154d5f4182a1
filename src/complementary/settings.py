"""What all configurations can do: frozen dataclasses with flat option names, TOML and a hash.

A configuration has options and, one level down, sections (dataclasses of options). Names are unique over
all of it, so that an option can be named without its section.
"""

import dataclasses
import hashlib
import json
import tomllib
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from complementary.errors import UserError, one_of


@dataclass(frozen=True)
class Settings:
    """Base of every configuration."""

    def hash(self) -> str:
        """A name for this configuration: 64 hexadecimal digits."""
        return hashlib.sha256(json.dumps(_canonical(self), sort_keys=True).encode()).hexdigest()


AnySettings = TypeVar("AnySettings", bound=Settings)
LATER = {"later": True}
"""Metadata of an option that was not there from the start: at its default it leaves the hash as it was, so that runs
made before are still found."""


def later_options(kind: type[Settings]) -> list[str]:
    """The names of the options of a configuration that are marked `LATER`."""
    sections = [hint for hint in typing.get_type_hints(kind).values() if dataclasses.is_dataclass(hint)]
    return [f.name for part in (kind, *sections) for f in dataclasses.fields(part) if f.metadata.get("later")]


def _canonical(options: Any) -> dict[str, Any]:
    """All options by section; whole numbers are floats where a float is meant, since 1 and 1.0 are one setting."""
    values = {}
    later = {f.name: f.default for f in dataclasses.fields(options) if f.metadata.get("later")}
    for name, hint in typing.get_type_hints(type(options)).items():
        value = getattr(options, name)
        if name in later and value == later[name]:
            continue
        if dataclasses.is_dataclass(hint):
            value = _canonical(value)
        elif type(value) is int and float in (typing.get_args(hint) or (hint,)):
            value = float(value)
        values[name] = value
    return values


def require(holds: bool, name: str, found: object, wanted: str) -> None:
    """Raise a sentence about the option ``name`` unless ``holds``."""
    if not holds:
        raise UserError(f"The option {name} is {found}, but it must be {wanted}.")


def options_of(kind: type[Settings]) -> dict[str, str]:
    """Every option of a configuration and its section; '' for those at the top level."""
    homes: dict[str, str] = {}
    for name, hint in typing.get_type_hints(kind).items():
        inner = [f.name for f in dataclasses.fields(hint)] if dataclasses.is_dataclass(hint) else None
        homes |= {name: ""} if inner is None else dict.fromkeys(inner, name)
    return homes


def replace(base: AnySettings, **options: Any) -> AnySettings:
    """Return ``base`` with the given options, named flat."""
    homes = options_of(type(base))
    for name in options:
        one_of("The option", name, homes)
    options = {n: _typed(f"The option {n}", v, _type_of(type(base), homes[n], n)) for n, v in options.items()}
    changed: dict[str, Any] = {n: v for n, v in options.items() if homes[n] == ""}
    for section in {homes[n] for n in options} - {""}:
        inner = {n: v for n, v in options.items() if homes[n] == section}
        changed[section] = dataclasses.replace(getattr(base, section), **inner)
    return dataclasses.replace(base, **changed)


def differences(a: Settings, b: Settings) -> list[str]:
    """The options in which two configurations of a kind differ, as ``name: a -> b``."""
    flat_a, flat_b = flat(a), flat(b)
    return [f"{name}: {flat_a[name]} -> {flat_b[name]}" for name in flat_a if flat_a[name] != flat_b[name]]


def flat(settings: Settings) -> dict[str, Any]:
    """The value of every option by its name."""
    homes = options_of(type(settings))
    return {n: getattr(getattr(settings, home) if home else settings, n) for n, home in homes.items()}


# --- TOML: the standard library reads it; writing these flat tables takes ten lines, not a dependency ---


def to_toml(settings: Settings) -> str:
    """The configuration as TOML text; options that are None are left out."""
    nested = dataclasses.asdict(settings)
    lines = _lines({name: value for name, value in nested.items() if not isinstance(value, dict)})
    for section, options in nested.items():
        if isinstance(options, dict):
            lines += ["", f"[{section}]", *_lines(options)]
    return "\n".join(lines) + "\n"


def _lines(options: dict[str, Any]) -> list[str]:
    return [f"{name} = {_toml(value)}" for name, value in options.items() if value is not None]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):  # TOML's basic strings are JSON's, but for the character DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)  # exact for floats


def load_toml(path: str | Path, what: str) -> dict[str, Any]:
    """The content of a TOML file; ``what`` it is meant to be, for the sentence if it cannot be read."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as problem:
        raise UserError(f"The {what} {path} cannot be read ({problem.strerror}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UserError(f"The {what} {path} is not TOML: {problem}.") from None


def read_toml(path: str | Path, kind: type[AnySettings]) -> AnySettings:
    """Read a configuration; unknown names and wrong types are errors."""
    content = load_toml(path, "configuration")
    homes, options = options_of(kind), dict[str, Any]()
    for section, entries in content.items():
        if isinstance(entries, dict) and section not in homes.values():
            raise UserError(f"{path} has a section [{section}], which is not a part of this configuration.")
        for name, value in entries.items() if isinstance(entries, dict) else [(section, entries)]:
            place = section if isinstance(entries, dict) else ""
            if homes.get(name) != place:
                raise UserError(f"{path} sets {name!r} in [{place or 'top level'}], which is not an option there.")
            options[name] = _typed(f"{path}: {name}", value, _type_of(kind, place, name))
    return replace(kind(), **options)


def _type_of(kind: type[Settings], section: str, name: str) -> Any:
    owner = kind if not section else typing.get_type_hints(kind)[section]
    return typing.get_type_hints(owner)[name]


def _typed(where: str, value: object, wanted: Any) -> object:
    if typing.get_origin(wanted) is Literal:
        return one_of(where, str(value), typing.get_args(wanted))
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    kinds = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) not in kinds:
        names = " or ".join(k.__name__ for k in kinds if k is not type(None))
        raise UserError(f"{where} is {value!r}, but it must be of type {names}.")
    return value
