"""The configuration of a run: frozen dataclasses, built from Python, TOML or the command line.

A configuration has options and, one level down, sections (dataclasses of options). Option names are unique over all
sections, so options can be given flat:

    >>> from complementary.config import Config
    >>> config = Config.of(data="digits", mix="icm", clusters=30, epochs=5)
    >>> config.mixing.mix, config.cluster.clusters
    ('icm', 30)
    >>> config.with_(epochs=7).training.epochs
    7

This module does not import torch, so that commands that only read configurations start quickly.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from complementary.errors import UserError, load_plugin, one_of, path_of, plugin_names, require

# fmt: off
LossName = Literal[
    "s-nl", "s-exp", "fwd", "dm", "l-uw", "s-lin", "s-gce", "pc", "op", "op-w", "mcl-mae", "mcl-exp", "mcl-log",
    "ure", "ure-nn", "ure-ga", "ure-t", "ure-tnn", "ure-tga", "cpe-i", "cpe-f", "cpe-t", "scarce", "s-nl-w", "fwd-la",
]
# fmt: on
MixerName = Literal["none", "mixup", "icm", "micm", "same-excluded", "intra-class", "extra-class"]
ModelName = Literal["auto", "linear", "mlp", "cnn", "resnet18"]
PolicyName = Literal["none", "cutout", "autoaugment", "randaugment", "strong"]
RecipeName = Literal["custom", "auto", "icm", "features", "self-training", "pocr", "plnl"]
ObjectiveName = Literal["simsiam", "byol", "mocov3"]
MIXED_WITHIN: dict[str, Literal["nothing", "clusters", "truth"]] = {
    "none": "nothing",
    "mixup": "nothing",
    "icm": "clusters",
    "micm": "clusters",
    "same-excluded": "nothing",
    "intra-class": "truth",
    "extra-class": "truth",
}
"""What each mixer requires of an example: nothing, its cluster, or (oracles) its true class."""

LARGEST = 10**9  # of an option that is an integer

CLOSED_FORM = ("neighbors", "discriminant")
"""Values of ``fit`` for which the classifier is a linear discriminant in closed form."""

FITS = 3
"""Fits of a discriminant (of ``fit = neighbors``: at most); more make it too confident (docs/notes/many-classes.md)."""

ADVANCED = {"advanced": True}
"""Metadata of an option that the short help of a command leaves out."""


class BaseConfig:
    """What every configuration can do. Subclasses are frozen dataclasses."""

    @classmethod
    def of(cls, **options: Any) -> Self:
        """Build a configuration from the defaults and the given options, named flat.

        Other options are set by the recipe and the optimizer (`preset`), if these are given.
        """
        start = cls()
        return start.with_(**(start.preset(options) | options)).with_given(options)

    @classmethod
    def stored(cls, **options: Any) -> Self:
        """Build a configuration from a stored one, which is complete.

        Options that it lacks are newer than it. They get their defaults, whatever its recipe sets today.
        """
        return cls.of(**(cls().flat() | options))

    def with_(self, **options: Any) -> Self:
        """Return a copy in which exactly the given options, named flat, are changed.

        Another recipe or optimizer that sets further options (`preset`) is refused unless these are given, too, or have
        the same values already: a copy has no record of which options were given, but `of` has one.
        """
        homes = options_of(type(self))
        for name in options:
            one_of("The option", name, homes)
        self._check_complete(options)
        typed = {n: _typed(f"The option {n}", v, _type_of(type(self), homes[n], n), n) for n, v in options.items()}
        changed: dict[str, Any] = {n: v for n, v in typed.items() if homes[n] == ""}
        for section in {homes[n] for n in typed} - {""}:
            inner = {n: v for n, v in typed.items() if homes[n] == section}
            changed[section] = dataclasses.replace(getattr(self, section), **inner)
        changed_copy: Self = dataclasses.replace(self, **changed)  # type: ignore[type-var]
        return changed_copy.with_given(self.given | options.keys())

    @property
    def given(self) -> frozenset[str]:
        """Names of the options that were given to `of`, `with_` or the command line, also those equal to a default.

        ``recipe = auto`` chooses all others. The names are no part of the configuration: they are not compared, hashed
        or stored, because a run stores what was chosen.
        """
        names: frozenset[str] = self.__dict__.get("_given", frozenset())
        return names

    def with_given(self, names: Iterable[str]) -> Self:
        """Return a copy in which exactly these options count as given."""
        copy = dataclasses.replace(self)  # type: ignore[type-var]
        object.__setattr__(copy, "_given", frozenset(names))
        return copy

    def _check_complete(self, options: dict[str, Any]) -> None:
        """Raise if the recipe or the optimizer among ``options`` sets other options than these."""
        flat = self.flat()
        new = {n: v for n, v in options.items() if n not in ("recipe", "optimizer") or flat[n] != v}
        others = [f"{n} = {v}" for n, v in self.preset(new).items() if n not in options and flat[n] != v]
        if others:
            source = "recipe" if "recipe" in options else "optimizer"
            raise UserError(
                f"{source} = {options[source]} also sets {', '.join(others)}; name these options, too, or build the "
                "configuration from all options at once.",
                source,
            )

    def preset(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options that the recipe and the optimizer among ``options`` set, besides these."""
        preset = RECIPES.get(options.get("recipe", ""), {})
        if options.get("optimizer") == "sgd":
            preset = preset | {"lr": SGD_LR}
        if preset.get("inputs") == "features":
            flat = self.flat() | options
            if _wants_equal_classes(flat):  # else rare classes are never predicted
                strong = _tail_of(flat) >= STRONG_TAIL and flat["student"] == "same"
                fits = options.get("fit", "discriminant") == "discriminant" and _allows_closed_form(options)
                preset = preset | (_STRONG_TAIL if strong and fits else TAIL)
            if options.get("inputs", "features") != "features":
                preset = {name: value for name, value in preset.items() if name not in ONLY_ON_FEATURES}
        return {name: value for name, value in preset.items() if name not in options}

    def flat(self) -> dict[str, Any]:
        """Every option and its value."""
        homes = options_of(type(self))
        return {n: getattr(getattr(self, home) if home else self, n) for n, home in homes.items()}

    def hash(self) -> str:
        """A fingerprint of the options that differ from their defaults: 64 hexadecimal digits.

        A new option therefore keeps the fingerprint of earlier configurations, if its default is what was done before.
        """
        return hashlib.sha256(json.dumps(_canonical(self), sort_keys=True).encode()).hexdigest()


def _tail_of(options: dict[str, Any]) -> float:
    """The ratio of the largest class to the smallest: by ``long_tail`` or by a setup of the paper; 1 if not valid."""
    labels = str(options.get("labels", ""))
    setup = labels.startswith(("setup-1:", "setup-3:"))
    try:
        return float(labels.rsplit(":", 1)[1] if setup else options.get("long_tail", 1.0))
    except (ValueError, TypeError):
        return 1.0


def _allows_closed_form(options: dict[str, Any]) -> bool:
    """Whether a discriminant can be fitted with these options: it is linear, is not mixed and predicts classes."""
    linear = options.get("model", "auto") in ("auto", "linear") and options.get("mix", "none") == "none"
    return linear and not str(options.get("loss", "")).startswith("cpe-")


def _wants_equal_classes(options: dict[str, Any]) -> bool:
    """Whether the classifier is for a population with classes of equal size, unlike the training data."""
    chosen = options.get("balanced")
    if chosen is not None:
        return bool(chosen)
    return _tail_of(options) > 1 or options.get("loss") == "fwd-la"


AnyConfig = TypeVar("AnyConfig", bound=BaseConfig)


_HINTS: dict[type, dict[str, Any]] = {}  # typing.get_type_hints is slow, and this is called thousands of times


def hints_of(kind: type) -> dict[str, Any]:
    """The type of every field of a dataclass."""
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind)
    return _HINTS[kind]


def options_of(kind: type) -> dict[str, str]:
    """Every option of a configuration and its section; '' for those at the top level."""
    homes: dict[str, str] = {}
    for name, hint in hints_of(kind).items():
        inner = [f.name for f in dataclasses.fields(hint)] if dataclasses.is_dataclass(hint) else None
        homes |= {name: ""} if inner is None else dict.fromkeys(inner, name)
    return homes


def differences(a: BaseConfig, b: BaseConfig) -> list[str]:
    """The options in which two configurations of a kind differ, as ``name: a -> b``."""
    flat_a, flat_b = a.flat(), b.flat()
    return [f"{name}: {flat_a[name]} -> {flat_b[name]}" for name in flat_a if flat_a[name] != flat_b[name]]


def _canonical(options: Any) -> dict[str, Any]:
    """Options that differ from their defaults. An int becomes a float if the option is one: 1 and 1.0 have one hash."""
    values, default = dict[str, Any](), type(options)()
    for name, hint in hints_of(type(options)).items():
        value = getattr(options, name)
        if dataclasses.is_dataclass(hint):
            values |= _canonical(value)
        elif value != getattr(default, name):
            is_float = type(value) is int and float in (typing.get_args(hint) or (hint,))
            values[name] = float(value) if is_float else value
    return values


def _type_of(kind: type, section: str, name: str) -> Any:
    owner = kind if not section else hints_of(kind)[section]
    return hints_of(owner)[name]


def _typed(where: str, value: object, wanted: Any, option: str | None = None) -> object:
    if typing.get_origin(wanted) is Literal:
        return one_of(where, str(value), typing.get_args(wanted), option)
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    if wanted is str and callable(value):  # a plug-in
        return path_of(value)
    kinds = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if isinstance(value, int) and abs(value) > 1e300:  # too large for a float, and maybe for a message
        raise UserError(f"{where} is an integer of more than 300 digits, which is too large.", option)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) not in kinds:
        names = " or ".join(k.__name__ for k in kinds if k is not type(None))
        raise UserError(f"{where} is {value!r}, but it must be of type {names}.", option)
    return value


def _check_choices(section: Any) -> None:
    """Raise if an option is none of its choices, an infinite or huge number, or text that is no name or path."""
    for name, hint in hints_of(type(section)).items():
        value = getattr(section, name)
        if typing.get_origin(hint) is Literal:
            one_of(f"The option {name}", value, typing.get_args(hint), name)
        elif isinstance(value, float):
            require(math.isfinite(value), name, value, "a finite number")
        elif isinstance(value, str):
            require("\0" not in value and len(value) <= 4096, name, repr(value[:40]), "a name or path")
        elif isinstance(value, int):
            limit = 2**63 if name in ("seed", "encoder_seed") else LARGEST
            require(abs(value) <= limit, name, f"{value:.1e}" if abs(value) < 1e300 else "huge", f"at most {limit:.0e}")


def _check_plugin(option: str, value: str, built_in: Any, kind: str) -> None:
    """Raise unless an option names a choice of the package (a Literal) or a plug-in."""
    if value not in typing.get_args(built_in):
        one_of(f"The option {option}", value, [*typing.get_args(built_in), *plugin_names(kind, value)], option)


# --- the sections -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DatasetConfig:
    """Which examples, and which complementary labels."""

    data: str = "digits"
    """Name of a dataset (see cll data list), or the path of an .npz file."""
    labels: str = "auto"
    """Complementary labels: given (they come with the data), uniform, biased:RATIO, noisy:RATE, designed:COUNT
    (each class has COUNT allowed labels; designed:COUNT:SHARE: one of them with this probability), matrix:FILE.csv, or
    the paper's setup-1:RATIO, setup-2:BIAS, setup-3:BIAS:RATIO. auto: given, else uniform."""
    per_example: int = 1
    """Number of distinct complementary labels per example (1 to classes - 1)."""
    long_tail: float = 1.0
    """Ratio of the largest to the smallest class; 1 keeps the dataset as it is."""
    head: int | None = field(default=None, metadata=ADVANCED)
    """Size of the largest class in a long tail; None: as in the paper, else the smallest class."""
    draws: Literal["addressed", "paper"] = field(default="addressed", metadata=ADVANCED)
    """paper: draw labels exactly as the published experiments did (uniform, NumPy seed 1126)."""
    subset: Literal["seed", "first"] = field(default="seed", metadata=ADVANCED)
    """Which examples a long tail keeps: drawn with the seed, or the first of each class as in the paper."""
    inputs: Literal["raw", "features"] = "raw"
    """What the classifier is trained on: the inputs themselves, or features of the encoder, which stays frozen unless
    self_training is set."""
    holdout: float = 0.1
    """Share of the training examples held out as a validation split for choosing the epoch by SCEL (surrogate
    complementary estimation loss: how badly complementary labels are predicted; lower is better); 0: none."""

    def __post_init__(self) -> None:
        _check_choices(self)
        require(0 <= self.holdout <= 0.5, "holdout", self.holdout, "between 0 and 0.5")
        require(self.long_tail >= 1, "long_tail", self.long_tail, "at least 1")
        require(self.head is None or self.head >= 1, "head", self.head, "at least 1")
        require(self.per_example >= 1, "per_example", self.per_example, "at least 1")


@dataclass(frozen=True)
class ClusterConfig:
    """The clusters that examples are mixed within."""

    clusters: int = 50
    """Number of clusters (k-means)."""
    clustering: Literal["kmeans", "spectral"] = field(default="kmeans", metadata=ADVANCED)
    """What k-means runs on: the features (as in the paper), or the leading eigenvectors of their neighbor graph
    (often purer clusters; the time grows with the square of the number of examples)."""
    encoder: str = "auto"
    """What is clustered: features of simsiam, byol or mocov3 (pretrained first, once), run:FOLDER (of cll pretrain),
    file:WEIGHTS (an encoder or a ResNet-18 state dict), timm:NAME or hf:NAME (models of timm or transformers, if they
    are installed), embeddings:Z.npy, patches (a spectral embedding of patches, fitted in a minute), random, or raw
    pixels. auto: an encoder that is already cached or stored for these images, else pixels with a warning."""
    pretrain_epochs: int = 800
    """Epochs of pretraining if the encoder has to be trained first."""
    pretrain_images: Literal["all", "training"] = field(default="all", metadata=ADVANCED)
    """Images that such an encoder is pretrained on: all of the run, or only those that are not held out. With training,
    the estimated accuracy is for new images, and every seed has an encoder of its own."""
    encoder_seed: int | None = field(default=None, metadata=ADVANCED)
    """Seed of the encoder, so that several runs on the same examples can share one; None: the seed of the run."""
    mirror: bool = field(default=False, metadata=ADVANCED)
    """Average the features of each image with those of its mirror image (twice the cost of embedding)."""
    assignments: str | None = None
    """File written by cll cluster: take the clusters from there; the other cluster options are ignored."""
    restarts: int = field(default=3, metadata=ADVANCED)
    """Number of k-means restarts; the best one is kept (the paper: 10)."""

    def __post_init__(self) -> None:
        _check_choices(self)
        require(self.clusters >= 0, "clusters", self.clusters, "0 (no clusters) or more")
        require(self.restarts >= 1, "restarts", self.restarts, "at least 1")
        from_file = self.assignments is not None and self.clustering != "kmeans"
        require(not from_file, "clustering", self.clustering, "left out, because assignments names a file of clusters")


@dataclass(frozen=True)
class MixingConfig:
    """How examples are mixed."""

    mix: str = "icm"
    """none, mixup, icm, micm; or a study variant: same-excluded, intra-class, extra-class (two oracles). Or a mixer of
    yours: the name of an entry point, or module:class."""
    alpha: float = 0.4
    """Parameter of the Beta (mixup, icm) or Dirichlet (micm) distribution of the mixing weights."""

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_plugin("mix", self.mix, MixerName, "mixers")
        require(0 < self.alpha <= 1e9, "alpha", self.alpha, "above 0 and at most 1e9")


@dataclass(frozen=True)
class VariantConfig:
    """Details of mixing where the paper's text, its published code and its studies differ. Defaults follow the text."""

    partner: Literal["distinct", "any"] = field(default="distinct", metadata=ADVANCED)
    """distinct: an example is never its own partner; any: it may be (as coded)."""
    partners_from: Literal["batch", "dataset"] = field(default="batch", metadata=ADVANCED)
    """Partners come from the batch (the paper) or from the whole training set."""
    lam: Literal["pair", "batch"] = field(default="pair", metadata=ADVANCED)
    """One mixing weight per pair, or one per batch (as coded)."""
    label_weights: Literal["matched", "swapped", "own"] = field(default="matched", metadata=ADVANCED)
    """Label weights: matched to the image's, swapped (icm as coded), or the own label only (fwd + mixup as coded)."""
    alone: Literal["skip", "keep", "black"] = field(default="skip", metadata=ADVANCED)
    """Examples without a partner in the batch: left out of the loss, kept unmixed, or a black image (as coded)."""
    share: Literal["new-data", "soft-label", "hard-label"] = field(default="new-data", metadata=ADVANCED)
    """Mix inputs and labels; or keep the inputs and share only the labels, softly or fully."""
    anchor: Literal["mixed", "own"] = field(default="mixed", metadata=ADVANCED)
    """micm: distances are measured from the mixed point, or from the own input (as coded)."""
    constant: float = field(default=30.0, metadata=ADVANCED)
    """micm: replaces a distance of 0 (C in the paper)."""
    same_class: bool = field(default=False, metadata=ADVANCED)
    """extra-class: also allow partners of the same class (as coded)."""
    noisy: float = field(default=0.0, metadata=ADVANCED)
    """extra-class: share of mixes that carry a wrong label on purpose, to study what noise does."""
    clean_pass: bool = field(default=False, metadata=ADVANCED)
    """Run the clean batch through the network first, which updates the batch-norm statistics (as coded)."""
    reset_optimizer: bool = field(default=False, metadata=ADVANCED)
    """Reset the optimizer's moments at every epoch (as coded)."""

    def __post_init__(self) -> None:
        _check_choices(self)
        require(self.constant > 0, "constant", self.constant, "above 0")
        require(0 <= self.noisy <= 1, "noisy", self.noisy, "from 0 to 1")


@dataclass(frozen=True)
class NetworkConfig:
    """The network."""

    model: ModelName = "auto"
    """linear, mlp, cnn or resnet18 (the paper's). auto: linear for features, cnn for images of 16 pixels and more,
    else mlp."""
    max_pool: bool = field(default=True, metadata=ADVANCED)
    """resnet18: keep the max-pool of the stem, as the paper did."""

    def __post_init__(self) -> None:
        _check_choices(self)


@dataclass(frozen=True)
class TrainingConfig:
    """Training, by default with Adam as in the paper (which used lr 1e-4, batch 512, 300 epochs)."""

    recipe: RecipeName = "custom"
    """A method with its usual options: icm (mix in clusters), features (a linear layer on a frozen encoder),
    self-training (fine-tune on pseudo-labels, usually the most accurate), pocr or plnl (published baselines). auto:
    chosen for the data and the device. Options that are given override those of the recipe. custom: none."""
    loss: str = "s-nl"
    """s-nl, s-exp, fwd, dm or one of the others that cll methods lists. Or your own loss: the name of an entry point,
    or module:function."""
    transition: str = "auto"
    """Transition matrix for losses that use one, and for SCEL: auto (the generating one; uniform if the labels were
    given), uniform, matrix:FILE.csv, estimate (from the labels, no true ones), or oracle (counted from the true labels;
    for losses that use a matrix)."""
    estimate_epochs: int = field(default=20, metadata=ADVANCED)
    """Epochs of each of the trainings that transition = estimate needs (15, or 6 on 10,000 raw examples and more). With
    loss = fwd, a linear layer on features is then trained from eight initial weights, and the best ones are used."""
    fit: Literal["auto", "gradient", "neighbors", "discriminant"] = field(default="auto", metadata=ADVANCED)
    """How the classifier, or the one that self-training starts from, is fitted. gradient: minimizes the loss.
    neighbors: a linear discriminant on features or vectors in closed form, from the labels of similar examples; for
    many classes. It has at most three epochs, and batch, lr, weight_decay, optimizer and ema are not used.
    discriminant: a linear layer by gradients, then three fits of such a discriminant from its predictions and the
    labels (also those of similar examples, if neighbors is set); for long tails. auto: chosen by recipe = auto, which
    sets it; with every other recipe the same as gradient."""
    epochs: int = 100
    """Passes over the training examples."""
    batch: int = 256
    """Batch size; the last partial batch of an epoch is dropped."""
    lr: float = 1e-3
    """Learning rate; constant with adam, the highest with sgd (.1 unless it is given)."""
    optimizer: Literal["adam", "sgd"] = field(default="adam", metadata=ADVANCED)
    """adam, or sgd: Nesterov momentum .9, the learning rate rises for one epoch and falls by a cosine to 0. The recipes
    pocr and plnl use SGD as published, whatever this says."""
    ema: float = field(default=0.0, metadata=ADVANCED)
    """Decay per step of the average of the weights that is evaluated and becomes the result, such as .995. 0: none."""
    weight_decay: float = field(default=1e-4, metadata=ADVANCED)
    """L2 penalty."""
    padding: int | None = field(default=None, metadata=ADVANCED)
    """Random crop: pixels of padding; None: an eighth of the image height (0 below 16 pixels); 0: no crop."""
    flip: bool | None = None
    """Random horizontal flips; None: where that keeps the class (not for digits)."""
    policy: PolicyName = field(default="none", metadata=ADVANCED)
    """Strong augmentation after crop and flip: none, cutout, autoaugment (CIFAR-10's policy) or randaugment."""

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_plugin("loss", self.loss, LossName, "losses")
        require(self.epochs >= 1, "epochs", self.epochs, "at least 1")
        require(self.estimate_epochs >= 1, "estimate_epochs", self.estimate_epochs, "at least 1")
        require(self.batch >= 2, "batch", self.batch, "at least 2")
        require(self.lr > 0, "lr", self.lr, "above 0")
        require(0 <= self.ema < 1, "ema", self.ema, "0 or more, and below 1")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")
        require(self.padding is None or self.padding >= 0, "padding", self.padding, "0 or more")
        if self.fit == "auto" and self.recipe != "auto":  # equal runs have equal configurations
            object.__setattr__(self, "fit", "gradient")

    @property
    def total_epochs(self) -> int:
        """Epochs of the training: passes over the examples, or fits in closed form."""
        return {"neighbors": min(FITS, self.epochs), "discriminant": FITS}.get(self.fit, self.epochs)


@dataclass(frozen=True)
class SelfTrainingConfig:
    """Self-training: the network is fine-tuned on pseudo-labels, after the training that the other options describe.

    A teacher (EMA of the network) predicts each example. Its predictions are averaged over time and combined with the
    complementary labels by Bayes' rule. The result is aligned with the class prior and sharpened. The network learns it
    from strongly augmented, mixed inputs, by SGD with Nesterov momentum.
    """

    self_training: int = 0
    """Epochs of self-training. It starts from a linear layer on features (inputs = features), or from the network that
    was trained on the inputs themselves. 0: none."""
    student: Literal["same", "mlp", "cnn", "resnet18"] = field(default="same", metadata=ADVANCED)
    """The network that is self-trained. same: that of the first training, with the encoder if it can be fine-tuned.
    Others are new networks, which first learn the predictions of the first classifier (with an encoder: after
    self-training of the layer on its features). mlp: on the same inputs, features or vectors; cnn or resnet18: on the
    images. For encoders that stay frozen, such as patches."""
    neighbors: int = field(default=0, metadata=ADVANCED)
    """Number of similar examples whose complementary labels also count as evidence for an example, which keeps rare
    classes; similar in the features that the last layer sees. As these improve, neighbors are found again. 0: none."""
    neighborhood: Literal["nearest", "cluster"] = field(default="nearest", metadata=ADVANCED)
    """Whose labels count. nearest: those of the nearest examples. cluster: the same, but in the last three eighths of
    the training those of the same cluster (k-means, about twice as many examples), which can find a lost class."""
    self_training_lr: float | None = field(default=None, metadata=ADVANCED)
    """Maximum learning rate of self-training. None: in proportion to the squared norm of the filters, because the
    weights of an encoder can be small, and a usual rate would destroy them; for an mlp lower with many features."""
    self_training_policy: PolicyName = field(default="strong", metadata=ADVANCED)
    """Augmentation of the images that the network learns from, as policy; strong: RandAugment, then cutout."""
    self_training_mix: Literal["none", "mixup", "icm", "micm"] = field(default="mixup", metadata=ADVANCED)
    """How images and pseudo-labels are mixed."""
    self_training_alpha: float = field(default=0.75, metadata=ADVANCED)
    """Parameter of the distribution of its mixing weights, as alpha."""
    teacher_ema: float = field(default=0.995, metadata=ADVANCED)
    """Decay of the teacher's weights per step; 0: the network is its own teacher."""
    memory: float = field(default=0.9, metadata=ADVANCED)
    """Decay of the predictions that are remembered for each example; 0: only the latest."""
    temperature: float = field(default=0.5, metadata=ADVANCED)
    """Sharpening of the pseudo-labels; 1: none."""
    align: bool = field(default=True, metadata=ADVANCED)
    """Align the mean of the pseudo-labels with the class prior."""
    prior: str = "estimate"
    """Class prior: estimate (from complementary labels, no true labels), uniform, or shares such as 0.5,0.3,0.2."""
    balanced: bool | None = None
    """Train for a population with classes of equal size, not for one like the training data (logit adjustment by the
    prior). Recipes then also set the loss for long tails. None: yes if long_tail is above 1, because the test set is
    balanced, or if the loss is fwd-la."""
    noise: float = field(default=0.1, metadata=ADVANCED)
    """Inputs that are vectors: standard deviation of the noise that replaces augmentation, in standard deviations."""

    def __post_init__(self) -> None:
        _check_choices(self)
        require(self.self_training >= 0, "self_training", self.self_training, "0 (none) or more")
        require(self.neighbors >= 0, "neighbors", self.neighbors, "0 (none) or more")
        rate = self.self_training_lr
        require(rate is None or rate > 0, "self_training_lr", rate, "above 0")
        require(self.self_training_alpha > 0, "self_training_alpha", self.self_training_alpha, "above 0")
        require(0 <= self.teacher_ema < 1, "teacher_ema", self.teacher_ema, "0 or more, and below 1")
        require(0 <= self.memory < 1, "memory", self.memory, "0 or more, and below 1")
        require(0 < self.temperature <= 1, "temperature", self.temperature, "above 0 and at most 1")
        require(self.noise >= 0, "noise", self.noise, "0 or more")
        self.shares()

    def shares(self) -> tuple[float, ...] | None:
        """The class prior, if it was given as numbers."""
        if self.prior in ("estimate", "uniform"):
            return None
        try:
            shares = tuple(map(float, self.prior.split(",")))
        except ValueError:
            raise UserError(
                f"The prior is {self.prior!r}, but it must be estimate, uniform, or one share per class, such as "
                "0.5,0.3,0.2.",
                "prior",
            ) from None
        if abs(sum(shares) - 1) > 1e-3 or not all(0 < share < 1 for share in shares):
            raise UserError(
                f"The prior {self.prior} has the sum {sum(shares):.4g} and the smallest share {min(shares):.4g}; the "
                "sum must be 1, and every share above 0.",
                "prior",
            )
        return shares


@dataclass(frozen=True)
class Config(BaseConfig):
    """Everything that determines the outcome of a run."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    mixing: MixingConfig = field(default_factory=MixingConfig)
    variant: VariantConfig = field(default_factory=VariantConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    pseudo_labels: SelfTrainingConfig = field(default_factory=SelfTrainingConfig)
    seed: int = 0
    """Determines labels, subset, clusters, initial weights and every random draw of the training."""

    def __post_init__(self) -> None:
        _check_choices(self)

    def of_recipe(self, *given: str) -> dict[str, Any]:
        """The options that the recipe sets if the loss, the mixer, the model and ``given`` are those of this one."""
        flat = self.flat()
        return self.preset({name: flat[name] for name in ("recipe", "loss", "mix", "model", *given)})

    def before_adaptation(self) -> list[Self]:
        """This configuration, and those that a run may have adapted to the data with this one as the result.

        A run can change the inputs, and the options that a recipe sets for a layer on features (`ONLY_ON_FEATURES`).
        """
        recipe = self.training.recipe
        if RECIPES.get(recipe, {}).get("inputs") != "features":
            return [self]
        flat, presets = self.flat(), (self.of_recipe(), self.of_recipe("fit"))
        names = ("inputs", *ONLY_ON_FEATURES)
        choices = ({flat[n], *(preset.get(n, flat[n]) for preset in presets)} for n in names)
        values = itertools.product(*(sorted(found, key=str) for found in choices))
        return [self.with_(**dict(zip(names, found, strict=True))) for found in values]

    @property
    def mixed_within(self) -> Literal["nothing", "clusters", "truth"]:
        """What the mixers require of each example: nothing, its cluster, or (oracles) its true class."""
        p, first = self.pseudo_labels, _mixed_within(self.mixing.mix)
        return MIXED_WITHIN[p.self_training_mix] if p.self_training and first == "nothing" else first

    @property
    def is_balanced(self) -> bool:
        """Whether the classifier is for a population with classes of equal size, unlike the training data."""
        return _wants_equal_classes(self.flat())

    def as_coded(self) -> "Config":
        """Return a copy in which the method is that of the paper's published code, where the text says otherwise.

        Data, labels, network and evaluation stay as they are; the protocol ``paper`` of `complementary.paper` changes
        these, too.
        """
        mix = self.mixing.mix
        options: dict[str, Any] = {"reset_optimizer": True}
        options |= {} if mix == "none" else {"clean_pass": True} | AS_CODED.get(mix, {})
        options |= {"label_weights": "own"} if (self.training.loss, mix) == ("fwd", "mixup") else {}
        return self.with_(**options)


def _mixed_within(mix: str) -> Literal["nothing", "clusters", "truth"]:
    """What a mixer needs to know; one from outside the package says so in its attribute ``within``."""
    if mix in MIXED_WITHIN:
        return MIXED_WITHIN[mix]
    within: Literal["nothing", "clusters", "truth"] = getattr(load_plugin("mixers", mix), "within", "nothing")
    return within


SGD_LR = 0.1
"""Learning rate of ``optimizer = sgd``, if none is given."""

_STUDY_AS_CODED: dict[str, Any] = {"lam": "batch", "partner": "any", "alone": "black"}
AS_CODED: dict[str, dict[str, Any]] = {
    "mixup": {"alpha": 1.0, "lam": "batch", "partner": "any"},
    "icm": {"label_weights": "swapped", "lam": "batch", "partner": "any", "alone": "black"},
    "micm": {"anchor": "own", "lam": "batch", "partner": "any", "alone": "black"},
    "same-excluded": _STUDY_AS_CODED,
    "intra-class": _STUDY_AS_CODED,
    "extra-class": {"alpha": 1.0, "same_class": True, "lam": "batch"},
}
"""Options of each mixer in the paper's published code, where the text says otherwise."""


_ON_FEATURES: dict[str, Any] = {
    "inputs": "features",
    "loss": "s-exp",
    "mix": "none",
    "epochs": 30,
    "batch": 512,
    "weight_decay": 0.01,  # a linear layer overfits wrong labels without it
}
# long tails: docs/notes/long-tails.md; a student (a new network) that learned from a discriminant was less accurate
TAIL: dict[str, Any] = {"loss": "s-nl-w", "weight_decay": 0.001, "neighbors": 50}
_STRONG_TAIL: dict[str, Any] = TAIL | {"weight_decay": 0.003, "fit": "discriminant"}
STRONG_TAIL = 10.0
"""Ratio of the largest class to the smallest from which a discriminant is fitted after the layer on features."""

ONLY_ON_FEATURES = ("weight_decay", "fit", "neighbors")
"""Options that recipes set for a linear layer on features, and not for a network on raw inputs."""

_PUBLISHED: dict[str, Any] = {
    "loss": "s-nl",
    "mix": "none",
    "epochs": 200,
    "batch": 64,
    "lr": 0.1,
    "weight_decay": 1e-4,
}
RECIPES: dict[str, dict[str, Any]] = {
    "auto": {"fit": "auto"},
    "icm": {"mix": "icm"},
    "features": _ON_FEATURES,
    "self-training": _ON_FEATURES | {"self_training": 150},
    "pocr": _PUBLISHED,
    "plnl": _PUBLISHED,
}
"""Options that a recipe sets."""


@dataclass(frozen=True)
class PretrainConfig(BaseConfig):
    """Self-supervised pretraining of an encoder. The defaults are SimSiam's for CIFAR."""

    data: str = "digits"
    """Name of the dataset; only its training images are used."""
    long_tail: float = 1.0
    """Pretrain on exactly the images of a run with this long tail (and the same seed and subset)."""
    head: int | None = field(default=None, metadata=ADVANCED)
    """Size of the largest class in a long tail, as in cll train."""
    subset: Literal["seed", "first"] = field(default="seed", metadata=ADVANCED)
    """Which images a long tail keeps: drawn with the seed, or the first of each class as in the paper."""
    holdout: float = 0.0
    """Leave out the validation split of a run with this holdout (cll train: 0.1) and the same seed. Its estimated
    accuracy is then for new images. 0: pretrain on all images."""
    encoder: ObjectiveName = "simsiam"
    """simsiam, byol or mocov3."""
    backbone: Literal["auto", "cnn", "resnet18"] = "auto"
    """cnn or resnet18; auto: resnet18 for images of 16 pixels and more, else cnn."""
    max_pool: bool = True
    """resnet18: keep the max-pool of the stem, as the paper did."""
    start: str | None = field(default=None, metadata=ADVANCED)
    """Start from the backbone of an existing encoder, run:FOLDER or file:WEIGHTS; use a lower lr then."""
    epochs: int = 800
    """Passes over the images."""
    batch: int = 512
    """Batch size; each image is seen in two views."""
    lr: float | None = None
    """Learning rate per 256 images (cosine schedule); None: that of the method (simsiam .03; byol, mocov3 .12)."""
    weight_decay: float = field(default=5e-4, metadata=ADVANCED)
    """L2 penalty."""
    min_scale: float = field(default=0.2, metadata=ADVANCED)
    """Random resized crop: smallest share of the image area."""
    flip: bool | None = None
    """Random horizontal flips; None: where that keeps the class (not for digits)."""
    jitter: float = field(default=0.8, metadata=ADVANCED)
    """Probability of color jitter (.4 .4 .4 .1); for grayscale images brightness and contrast only."""
    grayscale: float = field(default=0.2, metadata=ADVANCED)
    """Probability of conversion to grayscale."""
    blur: float = field(default=0.0, metadata=ADVANCED)
    """Probability of a Gaussian blur."""
    solarize: float = field(default=0.0, metadata=ADVANCED)
    """Probability of solarization."""
    probe_every: int = 0
    """Measure the kNN accuracy every so many epochs (an oracle: it needs true labels); 0: never."""
    seed: int = 0
    """Determines the subset, the initial weights and every random draw."""

    def __post_init__(self) -> None:
        _check_choices(self)
        require(self.epochs >= 1, "epochs", self.epochs, "at least 1")
        require(self.batch >= 2, "batch", self.batch, "at least 2")
        require(self.lr is None or self.lr > 0, "lr", self.lr, "above 0")
        require(0 <= self.holdout <= 0.5, "holdout", self.holdout, "between 0 and 0.5")
        require(self.long_tail >= 1, "long_tail", self.long_tail, "at least 1")
        require(self.head is None or self.head >= 1, "head", self.head, "at least 1")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")
        require(self.probe_every >= 0, "probe_every", self.probe_every, "0 (never) or more")
        require(0 < self.min_scale <= 1, "min_scale", self.min_scale, "above 0 and at most 1")
        for name in ("jitter", "grayscale", "blur", "solarize"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "a probability, 0 to 1")


# --- TOML: the standard library reads it; writing these flat tables takes ten lines -------------------------------


def to_toml(config: BaseConfig) -> str:
    """The configuration as TOML text; options that are None are left out."""
    nested = dataclasses.asdict(config)  # type: ignore[call-overload]
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
    if isinstance(value, str):  # TOML's basic strings are JSON's, except for the character DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)  # exact for floats


def load_toml(path: str | Path, what: str) -> dict[str, Any]:
    """Read a TOML file; ``what`` it should be is used in error messages."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"The {what} {path} cannot be read ({error.strerror}).") from None
    except RecursionError:
        raise UserError(f"The {what} {path} is not valid: its values are nested too deeply.") from None
    except ValueError as error:  # also for integers of thousands of digits, and paths with a NUL character
        raise UserError(f"The {what} {path} is not TOML: {error}.") from None


def read_toml(path: str | Path, kind: type[AnyConfig]) -> AnyConfig:
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
            options[name] = _typed(f"{path}: {name}", value, _type_of(kind, place, name), name)
    return kind.of(**options)
