"""Train classifiers from complementary labels: labels that say which class an example does *not* belong to.

`ComplementaryClassifier` follows the scikit-learn API. `run` trains as a `Config` says and `load` reads a finished run.
`diagnose` makes the report of a run, `find_answer_issues` finds answers that look wrong, and `export` writes ONNX.
`ICM`, `MICM`, `Mixup`, `kmeans` and the modules `labels`, `losses`, `mixing`, `oracle`, `priors`, `scores` and
`transitions` are for your own training loop, and `data` loads datasets. Everything else is internal and may change.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Must be set before torch loads OpenMP. By default its threads spin for milliseconds while they wait for each other;
# with other processes on the same cores, that made a small training 20 times slower. No difference on an idle machine.
if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
    os.environ["GOMP_SPINCOUNT"] = "10000"

if TYPE_CHECKING:
    from complementary import data, labels, losses, mixing, oracle, priors, scores, transitions
    from complementary.clusters.kmeans import kmeans
    from complementary.config import Config
    from complementary.errors import UserError
    from complementary.estimator import ComplementaryClassifier
    from complementary.mixing import ICM, MICM, Mixup
    from complementary.reports.answers import find_answer_issues
    from complementary.training.diagnose import diagnose
    from complementary.training.export import export
    from complementary.training.predict import load
    from complementary.training.run import run

__version__ = "0.1.0"
__all__ = [
    "ICM",
    "MICM",
    "ComplementaryClassifier",
    "Config",
    "Mixup",
    "UserError",
    "data",
    "diagnose",
    "export",
    "find_answer_issues",
    "kmeans",
    "labels",
    "load",
    "losses",
    "mixing",
    "oracle",
    "priors",
    "run",
    "scores",
    "transitions",
]

_HOMES = {  # the module of each name that is not a module itself
    "ComplementaryClassifier": "estimator",
    "Config": "config",
    "ICM": "mixing",
    "MICM": "mixing",
    "Mixup": "mixing",
    "UserError": "errors",
    "diagnose": "training.diagnose",
    "export": "training.export",
    "find_answer_issues": "reports.answers",
    "kmeans": "clusters.kmeans",
    "load": "training.predict",
    "run": "training.run",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that importing the package or asking for help does not load torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"complementary.{_HOMES.get(name, name)}")
    found = getattr(module, name) if name in _HOMES else module
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
