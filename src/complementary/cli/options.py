"""The options of the commands: dataclasses that tyro turns into a command line.

`parse` reads the options of any command, `parse_run` those of a command that has a configuration. ``--help`` shows the
main options. ``--help-all`` also shows those with the metadata ``ADVANCED``; they work on the command line either way.
"""

import inspect
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast, get_args, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from complementary.config import ADVANCED, AnyConfig, load_toml, read_toml
from complementary.errors import UserError

if TYPE_CHECKING:  # these import torch, which takes seconds
    from complementary.engine.distributed import ProcessGroup

AnyOptions = TypeVar("AnyOptions")


@dataclass(frozen=True)
class RunOptions:
    """Where and how a training runs. Except for rounding, none of this changes the result."""

    out: Path | None = None
    """Folder of the run. By default it is named after the main options, under runs/."""
    config: Path | None = None
    """A config.toml to start from, such as that of an earlier run. Other options override it."""
    resume: bool = False
    """Continue the run in the folder, with the configuration stored there."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1 …"""
    precision: Literal["auto", "bf16", "fp32"] = field(default="auto", metadata=ADVANCED)
    """bf16: networks compute in bfloat16, sums and weights stay float32. auto: bf16 on a GPU, fp32 on a CPU."""
    compile: bool = field(default=True, metadata=ADVANCED)
    """Compile the network (GPU only; takes about half a minute at the start)."""
    deterministic: bool = field(default=False, metadata=ADVANCED)
    """Bitwise equal results in every run on a GPU, too (slower). On a CPU results are always bitwise equal."""
    stream: Literal["auto", "always", "never"] = field(default="auto", metadata=ADVANCED)
    """Prefetch batches from a memory map instead of keeping all inputs on the device. auto: if they need more than half
    of the free GPU memory."""
    checkpoint_seconds: float = field(default=30.0, metadata=ADVANCED)
    """Seconds between two checkpoints."""

    def run_arguments(self, processes: "ProcessGroup") -> dict[str, Any]:
        """The keyword arguments of `training.run.run` and `encoders.pretrain.pretrain`."""
        from complementary.engine.backend import Engine

        device = self.device if processes.world_size == 1 else str(processes.device)
        engine = Engine.choose(device, self.precision, self.compile, self.deterministic, self.stream)
        return {
            "resume": self.resume,
            "device": engine,
            "checkpoint_seconds": self.checkpoint_seconds,
            "processes": processes,
        }

    def folder(self, data: str, *parts: object) -> Path:
        """The folder of the run: ``out``, or a name such as ``runs/digits-icm-0``.

        Args:
            data: Name or path of the dataset; of a path, the file name counts.
            parts: What else the name consists of.
        """
        out = self.out or Path("runs") / "-".join(map(str, (Path(data).name, *parts)))
        if self.resume and not (out / "config.toml").exists():
            raise UserError(f"There is no run in {out} to resume; leave --resume out to start one, or name its --out.")
        return out


# --- parsing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Values:
    """The options of a dataclass as they were read, before the dataclass checks them."""

    kind: type
    values: dict[str, Any]

    def build(self) -> Any:
        return self.kind(**{n: v.build() if isinstance(v, _Values) else v for n, v in self.values.items()})


_OPTIONS: set[str] = set()  # of the command that was parsed last


def flag_of(option: str | None) -> str | None:
    """How the current command spells an option of the configuration (``--long-tail``); None if it does not have it."""
    name = (option or "").replace("-", "_")
    return f"--{name.replace('_', '-')}" if name in _OPTIONS else None


def parse(kind: type[AnyOptions], arguments: Sequence[str], prog: str) -> AnyOptions:
    """Read a command line.

    Args:
        kind: A dataclass; nested dataclasses become groups of options.
        arguments: The arguments after the name of the command.
        prog: Name of the command, such as "cll cluster".

    Returns:
        An instance of ``kind``. A `UserError` of its checks is not caught.
    """
    return cast(AnyOptions, _read(kind, arguments, prog).build())


def parse_run(
    kind: type[AnyOptions],
    config_kind: type[AnyConfig],
    arguments: Sequence[str],
    prog: str,
    **preset: Any,
) -> tuple[AnyOptions, AnyConfig]:
    """Read the command line of a command that has a configuration.

    Args:
        kind: A dataclass that inherits from `RunOptions` and ``config_kind``.
        config_kind: `Config` or `PretrainConfig`.
        arguments: The arguments after the name of the command.
        prog: Name of the command, such as "cll train".
        preset: Options of the configuration that override its defaults or its file, but not ``arguments``.

    Returns:
        All options, and the configuration alone.
    """
    path = _base_file(_read(kind, arguments, prog).values)
    base = (read_toml(path, config_kind) if path else config_kind()).with_(**preset)
    default = kind(**{f.name: getattr(base, f.name) for f in fields(config_kind)})  # type: ignore[arg-type]
    options = _read(kind, arguments, prog, default).build()
    return options, config_kind(**{f.name: getattr(options, f.name) for f in fields(config_kind)})  # type: ignore[arg-type]


def is_given(option: str, options: RunOptions, arguments: Sequence[str]) -> bool:
    """Whether the user set an option of the configuration: on the command line, or in a file that it starts from."""
    flag = f"--{option.replace('_', '-')}"
    if any(argument.partition("=")[0].replace("_", "-") == flag for argument in arguments):
        return True
    path = _base_file(vars(options))
    content = {} if path is None else load_toml(path, "configuration")
    return option in content or any(option in part for part in content.values() if isinstance(part, dict))


def _base_file(values: dict[str, Any]) -> Path | None:
    """The file that the configuration starts from: the one given, or that of the folder to resume."""
    if values["config"] is not None:
        return cast(Path, values["config"])
    stored = (values["out"] or Path()) / "config.toml"
    return stored if values["resume"] and values["out"] is not None and stored.exists() else None


def _read(kind: type, arguments: Sequence[str], prog: str, default: Any = tyro.MISSING) -> _Values:
    everything = "--help-all" in arguments
    arguments = ["--help" if a == "--help-all" else a for a in arguments]
    hide = not everything and bool({"-h", "--help"} & set(arguments))
    description = inspect.getdoc(kind) or ""
    _OPTIONS.clear()
    registry = ConstructorRegistry()
    registry.struct_rule(partial(_rule, hide=hide))
    if hide and _advanced(kind):
        description += "\n\nAll options: " + prog + " --help-all"
    found = tyro.cli(
        kind,
        args=arguments,
        prog=prog,
        default=default,
        description=description,
        registry=registry,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.PositionalMetavarFromFieldName),
    )
    return cast(_Values, found)


def _rule(info: StructTypeInfo, hide: bool) -> StructConstructorSpec | None:
    """How tyro reads a dataclass: checks are left to `_Values.build`, advanced options are hidden on request."""
    if not is_dataclass(info.type):
        return None
    hints, found = get_type_hints(info.type, include_extras=True), []
    for option in fields(info.type):
        hint = _plain_metavar(hints[option.name])
        if hide and option.metadata.get("advanced"):
            hint = Annotated[hint, tyro.conf.Suppress]
        if not is_dataclass(hint):
            _OPTIONS.add(option.name)
        if isinstance(info.default, info.type):
            default = getattr(info.default, option.name)
        else:
            default = option.default if option.default is not MISSING else tyro.MISSING
            default = option.default_factory() if option.default_factory is not MISSING else default
        found.append(StructFieldSpec(option.name, hint, default, partial(_help, info.type, option.name)))
    return StructConstructorSpec(lambda **values: _Values(info.type, values), tuple(found))


def _plain_metavar(hint: Any) -> Any:
    """``INT`` rather than ``{None}|INT`` for an optional number, path or text."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    if not isinstance(hint, UnionType) or len(kinds) != 1 or kinds[0] not in (int, float, str, Path):
        return hint
    return Annotated[hint, tyro.conf.arg(metavar=kinds[0].__name__.upper())]


def _help(kind: type, option: str) -> str:
    return help_texts(kind).get(option, "")


@cache
def help_texts(kind: type) -> dict[str, str]:
    """The docstring below each field of a dataclass, inherited ones included."""
    from docstring_parser import parse_from_object  # tyro depends on it

    owners = reversed([owner for owner in kind.__mro__ if is_dataclass(owner)])
    params = [param for owner in owners for param in parse_from_object(owner).params]
    return {param.arg_name: " ".join((param.description or "").split()) for param in params}


def _advanced(kind: type) -> bool:
    """Whether a dataclass or one of its sections has options that only ``--help-all`` shows."""
    hints = get_type_hints(kind)
    inner = [hints[f.name] for f in fields(kind) if is_dataclass(hints[f.name])]
    return any(f.metadata.get("advanced") for f in fields(kind)) or any(map(_advanced, inner))
