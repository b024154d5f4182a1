"""Learn classifiers from labels that say what a thing is *not*.

Parts to use alone: `losses`, `mix`, `labels`, `transitions`, `validate`, `cluster`. Whole runs: `configure`
and `run`. With scikit-learn's manners: `ComplementaryClassifier`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from complementary.config import Config, configure
    from complementary.errors import UserError
    from complementary.estimator import ComplementaryClassifier
    from complementary.predict import load
    from complementary.runner import run

__version__ = "0.1.0"
__all__ = ["ComplementaryClassifier", "Config", "UserError", "configure", "load", "run"]

_HOMES = {
    "ComplementaryClassifier": "estimator",
    "Config": "config",
    "UserError": "errors",
    "configure": "config",
    "load": "predict",
    "run": "runner",
}


def __getattr__(name: str) -> Any:
    """Import on first use: ``cll --help`` need not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'complementary' has no attribute {name!r}")
    return getattr(import_module(f"complementary.{_HOMES[name]}"), name)
