"""What all configurations can do: frozen dataclasses with flat option names, TOML and a hash.

A configuration has options and, one level down, sections (dataclasses of options). Names are unique over
all of it, so that an option can be named without its section.

The configuration of a run: frozen dataclasses, built alike from Python, TOML and the command line.

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
from typing import Any, Literal, TypeVar

from complementary.augment.auto import POLICIES
from complementary.errors import UserError, one_of
from complementary.losses import LOSSES
from complementary.mixing import MIXERS
from complementary.networks import MODELS


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
    subset: Literal["seed", "first"] = "seed"
    """Which examples a long tail (or --head) keeps: drawn by the seed, or the first of each class, as in the paper."""
    inputs: Literal["raw", "features"] = field(default="raw", metadata=LATER)
    """What the network is shown: the inputs themselves, or the features of --encoder, which learns no more (but see
    --refine)."""
    holdout: float = 0.1
    """Share of the training examples whose labels are kept to choose the epoch (SCEL); 0: none."""

    def __post_init__(self) -> None:
        require(0 <= self.holdout <= 0.5, "holdout", self.holdout, "between 0 and 0.5")
        require(self.long_tail >= 1, "long-tail", self.long_tail, "at least 1")
        require(self.head is None or self.head >= 1, "head", self.head, "at least 1")
        require(self.per_example >= 1, "per-example", self.per_example, "at least 1")


@dataclass(frozen=True)
class ClusterConfig:
    """Clusters, for the mixers that mix inside them."""

    clusters: int = 50
    """Number of clusters (k-means)."""
    clustering: Literal["kmeans", "spectral"] = field(default="kmeans", metadata=LATER)
    """What k-means is given: the features (the paper), or the leading eigenvectors of their neighbour graph, which
    follow clusters of any shape (often cleaner, in time that grows with the square of the examples)."""
    encoder: str = "pixels"
    """What is clustered: pixels, random, the features of simsiam, byol or mocov3 (pretrained first, once),
    run:FOLDER (of cll pretrain), file:WEIGHTS (an encoder, or a ResNet-18 state dict) or embeddings:Z.npy."""
    pretrain_epochs: int = 800
    """Epochs of pretraining, where the encoder is still to be trained."""
    encoder_seed: int | None = None
    """Seed of the encoder, so that one can serve several runs on the same examples; None: the run's."""
    mirror: bool = field(default=False, metadata=LATER)
    """Average an image's features with those of its mirror image: better ones, at twice the cost of embedding."""
    assignments: str | None = None
    """A file of cll cluster --out: take the clusters from there, without any encoder; how many they are and how they
    were made is then the file's matter, and the other options about clusters are not used."""
    restarts: int = 3
    """k-means starts; the best one counts (the paper: 10)."""

    def __post_init__(self) -> None:
        require(self.clusters >= 0, "clusters", self.clusters, "0 (no clusters) or more")
        require(self.restarts >= 1, "restarts", self.restarts, "at least 1")
        taken = self.assignments is None or self.clustering == "kmeans"
        require(taken, "clustering", self.clustering, "left out: the clusters come from a file (--assignments)")


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
        require(self.alpha > 0, "alpha", self.alpha, "above 0")
        require(self.constant > 0, "constant", self.constant, "above 0")


@dataclass(frozen=True)
class ModelConfig:
    """The network."""

    model: str = "auto"
    """linear, mlp, cnn or resnet18 (the paper's); auto: linear for features, cnn for images of 16 pixels and more,
    else mlp."""
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
    refine: int = field(default=0, metadata=LATER)
    """With --inputs features: afterwards the encoder learns too, for so many epochs, from what was predicted so far
    and the labels together (docs/encoders.md)."""
    refine_lr: float = field(default=3e-4, metadata=LATER)
    """The largest learning rate of --refine; it falls by a cosine."""
    refine_policy: str = field(default="randaugment", metadata=LATER)
    """The stronger augmentation of --refine, as --policy."""
    policy: str = "none"
    """Stronger augmentation after crop and mirror: none, cutout, autoaugment (CIFAR-10's policy) or randaugment."""

    def __post_init__(self) -> None:
        one_of("The loss", self.loss, LOSSES)
        for policy in (self.policy, self.refine_policy):
            one_of("The augmentation policy", policy, POLICIES)
        require(self.epochs >= 1, "epochs", self.epochs, "at least 1")
        require(self.estimate_epochs >= 1, "estimate-epochs", self.estimate_epochs, "at least 1")
        require(self.batch >= 2, "batch", self.batch, "at least 2")
        require(self.lr > 0, "lr", self.lr, "above 0")
        require(self.refine >= 0, "refine", self.refine, "0 (not at all) or more")
        require(self.refine_lr > 0, "refine-lr", self.refine_lr, "above 0")
        require(self.weight_decay >= 0, "weight-decay", self.weight_decay, "0 or more")
        require(self.padding is None or self.padding >= 0, "padding", self.padding, "0 or more")


@dataclass(frozen=True)
class Config(Settings):
    """Everything that decides the outcome of a run."""

    source: DataConfig = field(default_factory=DataConfig)
    grouping: ClusterConfig = field(default_factory=ClusterConfig)
    mixing: MixConfig = field(default_factory=MixConfig)
    network: ModelConfig = field(default_factory=ModelConfig)
    training: TrainConfig = field(default_factory=TrainConfig)
    seed: int = 0
    """Decides labels, subset, clusters, initial weights and every random draw of the training."""

    def __post_init__(self) -> None:
        if self.training.refine and self.source.inputs != "features":
            raise UserError("Refining (--refine) begins with a classifier on features; add --inputs features.")


def configure(base: Config | None = None, **options: Any) -> Config:
    """Return ``base`` (or the defaults) with the given options, named flat: ``configure(mix="icm", seed=1)``."""
    return replace(base or Config(), **options)
