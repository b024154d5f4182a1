"""Datasets: load one by name with `load`, import your own with `import_dataset`, convert one with `from_dataset`.

    >>> from complementary import data
    >>> digits = data.load("digits")
    >>> tuple(digits.train.inputs.shape), len(digits.classes)
    ((1437, 1, 8, 8), 10)

The names are imported on first use, so that commands which only list datasets start without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from complementary.data.dataset import Answers, Dataset, Split, as_inputs, moments
    from complementary.data.importing import import_dataset
    from complementary.data.loading import load
    from complementary.data.memory import from_dataset, save
    from complementary.data.registry import REGISTRY
    from complementary.data.rules import rule_labels

__all__ = [
    "REGISTRY",
    "Answers",
    "Dataset",
    "Split",
    "as_inputs",
    "from_dataset",
    "import_dataset",
    "load",
    "moments",
    "rule_labels",
    "save",
]

_HOMES = {"REGISTRY": "registry", "import_dataset": "importing", "load": "loading"}
_HOMES |= {"from_dataset": "memory", "save": "memory", "rule_labels": "rules"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'dataset')}"), name)


def __dir__() -> list[str]:
    return __all__
