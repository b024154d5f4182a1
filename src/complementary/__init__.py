"""Learn classifiers from labels that say what a thing is *not*.

Parts to use alone: `losses`, `mix`, `labels`, `transitions`, `validate`, `cluster`. Whole runs: `configure`
and `run`. With scikit-learn's manners: `ComplementaryClassifier`.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:  # before torch: it is read when torch is loaded
    # Threads that wait for each other sleep soon. As a rule they spin for milliseconds, which beside other work on
    # the same cores made a small training twenty times slower; on an idle machine no difference was found.
    os.environ["GOMP_SPINCOUNT"] = "10000"

if TYPE_CHECKING:
    from complementary.config import Config
    from complementary.errors import UserError
    from complementary.estimator import ComplementaryClassifier
    from complementary.training.predict import load
    from complementary.training.run import run

__version__ = "0.1.0"
__all__ = ["ComplementaryClassifier", "Config", "UserError", "configure", "load", "run"]

_HOMES = {
    "ComplementaryClassifier": "estimator",
    "Config": "config",
    "UserError": "errors",
    "configure": "config",
    "load": "training.predict",
    "run": "training.run",
}


def __getattr__(name: str) -> Any:
    """Import on first use: ``cll --help`` need not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'complementary' has no attribute {name!r}")
    return getattr(import_module(f"complementary.{_HOMES[name]}"), name)
