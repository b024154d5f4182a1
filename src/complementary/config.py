"""The configuration of a run: frozen dataclasses, built alike from Python, TOML and the command line.

Names are unique over all sections, so that options can be given flat:

    >>> from complementary.config import configure
    >>> config = configure(data="digits", mix="icm", clusters=30, epochs=5)
    >>> config.mixing.mix, config.grouping.clusters
    ('icm', 30)
"""

import dataclasses
import hashlib
import json
import tomllib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from complementary.errors import UserError, one_of
from complementary.losses import LOSSES
from complementary.mix import MIXERS
from complementary.models import MODELS


@dataclass(frozen=True)
class DataConfig:
    """Which examples, and which complementary labels."""

    data: str = "digits"
    """Name of the dataset."""
    labels: str = "auto"
    """How labels arise: uniform, biased:RATIO, noisy:RATE, matrix:FILE.csv, the paper's setup-1:RATIO,
    setup-2:BIAS, setup-3:BIAS:RATIO, or given (they came with the data). auto: given, else uniform."""
    per_example: int = 1
    """How many distinct labels each example gets (1 to classes - 1)."""
    long_tail: float = 1.0
    """Ratio of the largest to the smallest class; 1 keeps the set as it is."""
    head: int | None = None
    """Size of the largest class in a long tail; None: as in the paper, else the smallest class."""
    draws: Literal["addressed", "paper"] = "addressed"
    """paper: draw labels exactly as the published experiments did (uniform, NumPy seed 1126)."""
    holdout: float = 0.1
    """Share of the training examples whose labels are kept to choose the epoch (SCEL); 0: none."""

    def __post_init__(self) -> None:
        _require(0 <= self.holdout <= 0.5, "holdout", self.holdout, "between 0 and 0.5")
        _require(self.long_tail >= 1, "long-tail", self.long_tail, "at least 1")
        _require(self.head is None or self.head >= 1, "head", self.head, "at least 1")
        _require(self.per_example >= 1, "per-example", self.per_example, "at least 1")


@dataclass(frozen=True)
class ClusterConfig:
    """Clusters, for the mixers that mix inside them."""

    clusters: int = 50
    """Number of clusters (k-means)."""
    embedding: str = "pixels"
    """What is clustered: pixels, or file:Z.npy with one row of numbers per training example."""
    restarts: int = 10
    """k-means starts; the best one counts."""

    def __post_init__(self) -> None:
        _require(self.clusters >= 0, "clusters", self.clusters, "0 (no clusters) or more")
        _require(self.restarts >= 1, "restarts", self.restarts, "at least 1")


@dataclass(frozen=True)
class MixConfig:
    """How examples are mixed. Defaults follow the paper's text; its code's choices are options."""

    mix: str = "icm"
    """none, mixup, icm, micm; or a study variant: same-excluded, intra-class, extra-class (oracles)."""
    alpha: float = 0.4
    """Parameter of the Beta (icm, mixup) or Dirichlet (micm) distribution of the weights."""
    partner: Literal["distinct", "any"] = "distinct"
    """distinct: never mixed with itself; any: may be (as coded)."""
    partners_from: Literal["batch", "dataset"] = "batch"
    """Partners come from the batch (the paper) or the whole training set (nobody is ever alone)."""
    lam: Literal["pair", "batch"] = "pair"
    """One weight per pair, or per batch (as coded)."""
    label_weights: Literal["matched", "swapped", "own"] = "matched"
    """matched to the image's weights; swapped (icm as coded); own label only (fwd + mixup as coded)."""
    alone: Literal["skip", "keep", "black"] = "skip"
    """No partner in the batch: left out of the loss, kept unmixed, or a black image (as coded)."""
    share: Literal["new-data", "soft-label", "hard-label"] = "new-data"
    """Mix inputs and labels; or keep the input and share labels only, softly or fully."""
    anchor: Literal["mixed", "own"] = "mixed"
    """micm: distances from the mixed point, or from the own input (as coded)."""
    constant: float = 30.0
    """micm: stands for a distance of zero (C)."""
    same_class: bool = False
    """extra-class: also allow partners of the same class (as coded)."""
    clean_pass: bool = False
    """Show the network the clean batch first, for its batch-norm statistics (as coded)."""

    def __post_init__(self) -> None:
        one_of("The mixer", self.mix, MIXERS)
        _require(self.alpha > 0, "alpha", self.alpha, "above 0")
        _require(self.constant > 0, "constant", self.constant, "above 0")


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    model: str = "auto"
    """linear, mlp, cnn or resnet18 (the paper's); auto: cnn for images of 16 pixels and more, else mlp."""
    max_pool: bool = True
    """resnet18: keep the max-pool, as the paper did."""

    def __post_init__(self) -> None:
        one_of("The model", self.model, ("auto", *MODELS))


@dataclass(frozen=True)
class TrainConfig:
    """Training: Adam, as in the paper (which used --lr 1e-4 --batch 512 --epochs 300)."""

    loss: str = "s-nl"
    """s-nl, s-exp, fwd or dm."""
    transition: str = "auto"
    """Matrix for fwd and for SCEL: auto (the generating one; uniform if the labels were given), uniform,
    matrix:FILE.csv, estimate (anchor points, no truth), or oracle (counted from the true labels; fwd only)."""
    estimate_epochs: int = 20
    """Epochs of plain s-nl before the matrix is estimated."""
    epochs: int = 100
    """Passes over the training examples."""
    batch: int = 256
    """Examples per step; the last partial batch is dropped."""
    lr: float = 1e-3
    """Learning rate, constant."""
    weight_decay: float = 1e-4
    """L2 penalty."""
    reset_optimizer: bool = False
    """Forget Adam's moments at every epoch (as coded)."""
    padding: int | None = None
    """Random crop: pixels a picture may move; None: an eighth of its height (0 below 16 pixels); 0: no crop."""
    flip: bool | None = None
    """Mirror pictures at random; None: where that keeps the class (not for digits)."""

    def __post_init__(self) -> None:
        one_of("The loss", self.loss, LOSSES)
        _require(self.epochs >= 1, "epochs", self.epochs, "at least 1")
        _require(self.estimate_epochs >= 1, "estimate-epochs", self.estimate_epochs, "at least 1")
        _require(self.batch >= 2, "batch", self.batch, "at least 2")
        _require(self.lr > 0, "lr", self.lr, "above 0")
        _require(self.weight_decay >= 0, "weight-decay", self.weight_decay, "0 or more")
        _require(self.padding is None or self.padding >= 0, "padding", self.padding, "0 or more")


@dataclass(frozen=True)
class Config:
    """Everything that decides the outcome of a run."""

    source: DataConfig = field(default_factory=DataConfig)
    grouping: ClusterConfig = field(default_factory=ClusterConfig)
    mixing: MixConfig = field(default_factory=MixConfig)
    network: ModelConfig = field(default_factory=ModelConfig)
    training: TrainConfig = field(default_factory=TrainConfig)
    seed: int = 0
    """Decides labels, subset, clusters, initial weights and every random draw of the training."""

    def hash(self) -> str:
        """A name for this configuration: 64 hexadecimal digits."""
        return hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()


def _require(holds: bool, name: str, found: object, wanted: str) -> None:
    if not holds:
        raise UserError(f"The option {name} is {found}, but it must be {wanted}.")


def _home() -> dict[str, str]:
    """Section of every option; the top level is ''."""
    homes = {"seed": ""}
    for section in dataclasses.fields(Config):
        if section.name != "seed":
            homes |= {f.name: section.name for f in dataclasses.fields(section.default_factory)}  # type: ignore[arg-type]
    return homes


def configure(base: Config | None = None, **options: Any) -> Config:
    """Return ``base`` (or the defaults) with the given options, named flat: ``configure(mix="icm", seed=1)``."""
    base = base or Config()
    homes = _home()
    for name in options:
        one_of("The option", name, homes)
    changed: dict[str, Any] = {}
    for section in set(homes.values()) - {""}:
        inner = {n: v for n, v in options.items() if homes[n] == section}
        changed[section] = dataclasses.replace(getattr(base, section), **inner)
    return dataclasses.replace(base, **changed, seed=options.get("seed", base.seed))


def differences(a: Config, b: Config) -> list[str]:
    """The options in which two configurations differ, as ``name: a -> b``."""
    flat_a, flat_b = _flat(a), _flat(b)
    return [f"{name}: {flat_a[name]} -> {flat_b[name]}" for name in flat_a if flat_a[name] != flat_b[name]]


def _flat(config: Config) -> dict[str, Any]:
    nested = dataclasses.asdict(config)
    return {"seed": config.seed} | {n: nested[home][n] for n, home in _home().items() if home}


# --- TOML: the standard library reads it; writing these flat tables takes ten lines, not a dependency ---


def to_toml(config: Config) -> str:
    """The configuration as TOML text; options that are None are left out."""
    lines = [f"seed = {config.seed}"]
    for section, options in dataclasses.asdict(config).items():
        if section != "seed":
            lines += ["", f"[{section}]"]
            lines += [f"{name} = {_toml(value)}" for name, value in options.items() if value is not None]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):  # TOML's basic strings are JSON's, but for the character DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)  # exact for floats


def read_toml(path: str | Path) -> Config:
    """Read a configuration; unknown names and wrong types are errors."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as problem:
        raise UserError(f"The configuration {path} cannot be read ({problem.strerror}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UserError(f"{path} is not TOML: {problem}.") from None
    homes, options = _home(), dict[str, Any]()
    for section, entries in content.items():
        for name, value in entries.items() if isinstance(entries, dict) else [(section, entries)]:
            place = section if isinstance(entries, dict) else ""
            if homes.get(name) != place:
                raise UserError(f"{path} sets {name!r} in [{place or 'top level'}], which is not an option there.")
            options[name] = _typed(f"{path}: {name}", value, _type_of(place, name))
    return configure(**options)


def _type_of(section: str, name: str) -> Any:
    owner = Config if not section else typing.get_type_hints(Config)[section]
    return typing.get_type_hints(owner)[name]


def _typed(where: str, value: object, wanted: Any) -> object:
    if typing.get_origin(wanted) is Literal:
        return one_of(where, str(value), typing.get_args(wanted))
    kinds = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) not in kinds:
        names = " or ".join(k.__name__ for k in kinds if k is not type(None))
        raise UserError(f"{where} is {value!r}, but it must be of type {names}.")
    return value
