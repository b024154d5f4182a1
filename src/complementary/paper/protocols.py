"""From a setting of the paper to a configuration, under one of two protocols.

| | ours | paper |
|---|---|---|
| method | as the paper writes it | as its published code did it (`mix.AS_CODED`, a clean pass first) |
| labels | drawn anew for every seed | NumPy seed 1126 for all seeds (uniform labels; others by our seeds) |
| long tail | the first images of each class | the first images of each class |
| Mixup | the same alpha as ICM | alpha = 1; with fwd the own label alone |
| fwd | generating matrix; estimated where labels were given | matrix counted from the true labels |
| Adam | kept | re-created every epoch |
| mirror | not for digits | always |
| MNIST | 60,000 images | 50,000 images |
| figure | last epoch, and the one chosen without truth (10 % held out) | best epoch on the test set |

Both: ResNet-18 with max-pool, Adam 1e-4, weight decay 1e-4, batch 512, crop with padding 4, 50 clusters by SimSiam.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from complementary.clusters.assign import read_assignment
from complementary.config import AS_CODED, MIXED_WITHIN, Config
from complementary.data import TABLE
from complementary.long_tail import class_sizes
from complementary.paper import published

Protocol = Literal["ours", "paper"]
PROTOCOLS: tuple[Protocol, ...] = ("ours", "paper")

COMMON: dict[str, Any] = {
    "model": "resnet18",
    "max_pool": True,
    "batch": 512,
    "lr": 1e-4,
    "weight_decay": 1e-4,
    "padding": 4,
    "epochs": 300,
}
# one encoder for all seeds: it is the stage that takes long, and its seed is not what the paper varies
CLUSTERED: dict[str, Any] = {
    "clusters": 50,
    "encoder": "simsiam",
    "encoder_seed": 0,
    "pretrain_epochs": 800,
    "restarts": 10,
}
FIRST = {"subset": "first"}
FIGURES: dict[Protocol, dict[str, str]] = {
    "ours": {"last": "accuracy_last", "selected": "accuracy_selected"},
    "paper": {"best on test": "accuracy_best_on_test", "last": "accuracy_last"},
}
"""What is reported of a run, by the name of its column; the first is what is compared with the paper."""
NOISE = {"noise": "noise_ratio"}
# Not in the table of differences between text and code: the study mixers went through the same loop as ICM.
STUDIES_AS_CODED: dict[str, Any] = {"lam": "batch", "partner": "any", "alone": "black"}


@dataclass(frozen=True)
class Setting:
    """What the paper says of an experiment. ``tail``, ``bias``: 1 for none; ``changes``: options that differ."""

    data: str
    loss: str = "s-nl"
    mix: str = "none"
    tail: float = 1.0
    bias: float = 1.0
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def clustered(self) -> bool:
        """Whether its mixer needs clusters."""
        return MIXED_WITHIN[self.mix] == "clusters"

    @property
    def images(self) -> str:
        """The set that its images come from."""
        return TABLE[self.data].base or self.data


def config_of(setting: Setting, protocol: Protocol, **options: Any) -> Config:
    """The configuration of a setting, for any seed; ``options`` such as epochs win over all else."""
    given = TABLE[setting.data].labels != "truth"
    labels = "given" if given else "uniform" if setting.bias == 1 else f"biased:{setting.bias:g}"
    chosen = COMMON | {"data": setting.data, "long_tail": setting.tail, "labels": labels}
    chosen |= {"loss": setting.loss, "mix": setting.mix}
    chosen |= CLUSTERED if setting.clustered else {}
    chosen |= _ours(setting, given) if protocol == "ours" else _paper(setting)
    return Config.of(**(chosen | dict(setting.changes) | options))


def _ours(setting: Setting, given: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"transition": "estimate"} if setting.loss == "fwd" and given else {}
    options |= FIRST if setting.tail > 1 else {}
    return options | ({} if setting.mix == "none" else {"alpha": alpha_of(setting)})


def _paper(setting: Setting) -> dict[str, Any]:
    options: dict[str, Any] = {"holdout": 0.0, "reset_optimizer": True, "flip": True}
    options |= {"head": 5000} if setting.images == "mnist" else {}
    if setting.bias == 1:
        options["draws"] = "paper"
    elif setting.tail > 1 or "head" in options:
        options |= FIRST
    options |= {"transition": "oracle"} if setting.loss == "fwd" else {}
    if setting.mix == "none":
        return options
    options |= {"clean_pass": True, "alpha": 1.0 if setting.mix == "extra-class" else alpha_of(setting)}
    options |= AS_CODED.get(setting.mix, STUDIES_AS_CODED)
    return options | ({"label_weights": "own"} if (setting.loss, setting.mix) == ("fwd", "mixup") else {})


def alpha_of(setting: Setting) -> float:
    """The paper's mixing parameter for these images; all mixers of pairs share that of ICM."""
    return published.alphas()[setting.images]["micm" if setting.mix == "micm" else "icm"]


def examples(config: Config) -> int:
    """How many training examples a configuration of a named set takes, before any are held out."""
    source, named = config.dataset, TABLE[config.dataset.data]
    if source.long_tail == 1 and source.head is None:
        return named.train
    head = source.head or named.head or named.train // len(named.classes)
    return sum(class_sizes(head, source.long_tail, len(named.classes)))


# --- stored clusters ----------------------------------------------------------------------------------


def with_assignments(config: Config, folder: Path) -> Config:
    """The same with the clusters that are stored in ``folder``, if there are some for exactly these examples."""
    if config.mixed_within != "clusters" or not _fixed(config):
        return config
    source, grouping = config.dataset, config.cluster
    images = TABLE[source.data].base or source.data
    path = folder / f"{images}-rho{source.long_tail:g}-{grouping.encoder}-k{grouping.clusters}.safetensors"
    if not path.exists() or _length(path) != examples(config):
        return config
    return config.with_(assignments=str(path))


def _fixed(config: Config) -> bool:
    """Whether all seeds take the same examples."""
    source = config.dataset
    every = source.long_tail == 1 and source.head is None
    return every or source.draws == "paper" or source.subset == "first"


def _length(path: Path) -> int:
    return len(read_assignment(path)[0])
