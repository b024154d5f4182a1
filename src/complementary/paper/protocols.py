"""From a setting of the paper to a configuration, under one of three protocols (see `DIFFERENCES`).

All: ResNet-18 with max-pool, Adam 1e-4, weight decay 1e-4, batch 512, 50 clusters by SimSiam, long tails of the first
images of each class.
"""

from pathlib import Path
from typing import Any

from complementary.clusters.assign import read_assignment
from complementary.config import Config
from complementary.data.registry import REGISTRY
from complementary.data.selection import count_examples, same_for_all_seeds
from complementary.paper import published
from complementary.paper.studies import Protocol, Setting

DIFFERENCES = """\
| | plain | paper | ours |
|---|---|---|---|
| method | published code (`Config.as_coded`) | published code | text of the paper |
| crop with padding 4 | no | yes | yes (not mentioned in the text) |
| horizontal flip | no | yes | yes, not for digits (not mentioned in the text) |
| held out for the selection of an epoch | nothing | nothing | 10 % of the labels (not in the paper) |
| labels | NumPy seed 1126 for all seeds (uniform labels; others with our seeds) | as plain | new for every seed |
| Mixup | alpha = 1; with fwd only the own label | as plain | the same alpha as ICM |
| matrix of fwd | counted from the true labels | as plain | generating matrix; estimated where labels were given |
| Adam | re-created every epoch | as plain | kept |
| MNIST | 50,000 images | as plain | 60,000 images |
| reported | best epoch on the test set, last epoch | as plain | these, and the epoch selected by SCEL |"""
COMMON: dict[str, Any] = {
    "model": "resnet18",
    "max_pool": True,
    "batch": 512,
    "lr": 1e-4,
    "weight_decay": 1e-4,
    "padding": 4,
    "epochs": published.EPOCHS,
}
CLUSTERED: dict[str, Any] = {  # one encoder for all seeds: pretraining takes long, and the paper does not vary its seed
    "clusters": 50,
    "encoder": "simsiam",
    "encoder_seed": 0,
    "pretrain_epochs": 800,
    "restarts": 10,
}


def config_of(setting: Setting, protocol: Protocol, **options: Any) -> Config:
    """The configuration of a setting.

    Args:
        setting: what the paper says.
        protocol: ``ours``, ``paper``, or ``plain``: the same without crop and flip.
        **options: further options, such as ``epochs`` and ``seed``; they override everything else.
    """
    given = labels_are_given(setting.data)
    labels = "given" if given else "uniform" if setting.bias == 1 else f"biased:{setting.bias:g}"
    chosen = COMMON | {"data": setting.data, "long_tail": setting.tail, "labels": labels}
    chosen |= {"loss": setting.loss, "mix": setting.mix}
    chosen |= CLUSTERED if setting.clustered else {}
    chosen |= {} if setting.mix == "none" else {"alpha": alpha_of(setting)}
    if protocol == "ours":
        chosen |= {"transition": "estimate"} if setting.loss == "fwd" and given else {}
        chosen |= {"subset": "first"} if setting.tail > 1 else {}
        config = Config.of(**chosen)
    else:
        config = Config.of(**(chosen | _paper_data(setting))).as_coded()
        config = config.with_(padding=0, flip=False) if protocol == "plain" else config
    return config.with_(**(dict(setting.changes) | options))


def _paper_data(setting: Setting) -> dict[str, Any]:
    """Examples, labels and evaluation of the published code."""
    options: dict[str, Any] = {"holdout": 0.0, "flip": True}
    options |= {"head": 5000} if _images_of(setting) == "mnist" else {}
    options |= {"transition": "oracle"} if setting.loss == "fwd" else {}
    if setting.bias == 1:
        return options | {"draws": "paper"}
    return options | ({"subset": "first"} if setting.tail > 1 or "head" in options else {})


def labels_are_given(data: str) -> bool:
    """Whether a dataset comes with complementary labels."""
    return REGISTRY[data].labels != "truth"


def alpha_of(setting: Setting) -> float:
    """The paper's mixing parameter for these images; all mixers of pairs share that of ICM.

    Images that the paper does not have get the default.
    """
    known = published.alphas().get(_images_of(setting))
    return Config().mixing.alpha if known is None else known["micm" if setting.mix == "micm" else "icm"]


def _images_of(setting: Setting) -> str:
    """The dataset that the images come from."""
    return REGISTRY[setting.data].base or setting.data


def with_assignments(config: Config, folder: Path) -> Config:
    """Use stored clusters if ``folder`` has some for exactly these examples; else return the configuration unchanged.

    A file is found by its name, such as ``cifar10-rho100-simsiam-k50.safetensors``.
    """
    if config.mixed_within != "clusters" or not same_for_all_seeds(config):
        return config
    images = REGISTRY[config.dataset.data].base or config.dataset.data
    cluster = config.cluster
    name = f"{images}-rho{config.dataset.long_tail:g}-{cluster.encoder}-k{cluster.clusters}.safetensors"
    path = folder / name
    if not path.exists() or len(read_assignment(path)[0]) != count_examples(config):
        return config
    return config.with_(assignments=str(path))
