"""A classifier with scikit-learn's manners: ``fit(X, not_y)``, ``predict``, ``predict_proba``."""

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from complementary import labels, transitions
from complementary.config import Config, options_of
from complementary.data import Dataset, Split
from complementary.engine.run_folder import loop
from complementary.errors import UserError
from complementary.reports.terminal import Pace, to_stderr
from complementary.scores import estimated_accuracy
from complementary.training.run import start
from complementary.training.trainer import Trainer

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
except ImportError:  # the core works without scikit-learn; pipelines and searches then have no use for this class

    class BaseEstimator:  # type: ignore[no-redef]
        """Stands in for scikit-learn's."""

    class ClassifierMixin:  # type: ignore[no-redef]
        """Stands in for scikit-learn's."""


FIXED = ("data", "labels", "per_example", "long_tail", "head", "draws")  # what fit's arguments decide


class ComplementaryClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learn to classify from labels that say what each example is *not*.

    ``options`` are those of ``cll train`` (see `complementary.config`), such as ``mix="icm"``,
    ``clusters=30``, ``loss="dm"``, ``epochs=50``, ``seed=1``. ``verbose``: tell of the epochs, on standard error.

        >>> import numpy as np
        >>> from complementary import ComplementaryClassifier
        >>> x = np.random.default_rng(0).normal(size=(300, 2)) + np.repeat([[0, 0], [6, 0], [0, 6]], 100, axis=0)
        >>> not_y = np.repeat([1, 2, 0], 100)      # the first hundred are "not class 1", and so on
        >>> not_y[::2] = np.repeat([2, 0, 1], 100)[::2]
        >>> model = ComplementaryClassifier(mix="none", epochs=30, batch=50).fit(x, not_y)
        >>> model.predict([[0, 0], [6, 0], [0, 6]]).tolist()
        [0, 1, 2]
    """

    def __init__(self, *, device: str = "auto", verbose: bool = False, **options: Any) -> None:
        for name in FIXED:
            if name in options:
                raise UserError(
                    f"The option {name!r} belongs to cll train; here the data and its labels come with fit(X, not_y)."
                )
        self.device, self.verbose, self.options = device, verbose, options
        with _as_keywords():
            self.config = Config.of(**{"labels": "given"} | options)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The options, for scikit-learn's ``clone`` and searches."""
        return {"device": self.device, "verbose": self.verbose, **self.options}

    def set_params(self, **options: Any) -> "ComplementaryClassifier":
        """Change options; a fitted network is forgotten at the next ``fit``."""
        self.__init__(**self.get_params() | options)  # type: ignore[misc]
        return self

    def fit(self, X: ArrayLike, not_y: object, classes: int | None = None) -> "ComplementaryClassifier":
        """Learn from ``X`` and what it is not.

        ``X``: images uint8 [N, H, W], [N, H, W, C] or [N, C, H, W], or vectors [N, D]. ``not_y``: an int
        vector [N], a list of sets of class numbers, or a 0/1 array [N, K]. ``classes``: K, by default the
        largest label plus one.
        """
        excluded = labels.to_excluded(not_y, classes)
        inputs = as_inputs(X)
        if len(inputs) != len(excluded):
            raise UserError(f"X has {len(inputs)} examples but not_y has {len(excluded)}; they must match.")
        mean, std = _statistics(inputs)
        names = tuple(str(k) for k in range(excluded.shape[1]))
        dataset = Dataset("your data", Split(inputs, excluded=excluded), None, names, mean, std)
        _warn_of_unnamed(excluded)
        with _as_keywords():
            progress = _teller() if self.verbose else None
            trainer = start(self._sized(len(inputs)), self.device, dataset, progress=progress)
            loop(trainer, progress=progress)
        if trainer.selected:
            trainer.model.load_state_dict(trainer.selected)
        self.trainer_: Trainer = trainer
        self.classes_ = np.arange(excluded.shape[1])
        self.n_features_in_ = int(np.prod(inputs.shape[1:]))
        return self

    def _sized(self, count: int) -> Config:
        """Batch and number of clusters that suit ``count`` examples, where the user has not chosen them."""
        batch, clusters = min(256, max(2, count // 4)), min(50, max(2, count // 10))
        return self.config.with_(**{"batch": batch, "clusters": clusters} | self.options)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float32]:
        """Class probabilities float32 [N, K]."""
        if not hasattr(self, "trainer_"):
            raise UserError("This classifier has not been fitted; call fit(X, not_y) first.")
        task = self.trainer_.task
        inputs, wanted = as_inputs(X), task.shape if task.lens is None else task.lens.shape
        if tuple(inputs.shape[1:]) != wanted:
            raise UserError(f"X has examples of shape {list(inputs.shape[1:])}, but the fit was on {list(wanted)}.")
        if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
            raise UserError("X holds NaN or infinity; clean or drop such rows first.")
        seen = inputs if task.lens is None else task.lens(inputs, self.trainer_.device)
        logits = self.trainer_.logits(seen.to(self.trainer_.device))
        return logits.float().softmax(1).cpu().numpy()

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """The most probable class of each example, int [N]."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]  # type: ignore[no-any-return]

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy against *true* labels ``y`` int [N]."""
        predicted, truth = self.predict(X), np.asarray(y)
        if truth.shape != predicted.shape:
            raise UserError(f"X has {len(predicted)} examples but y has shape {list(truth.shape)}; they must match.")
        return float(
            np.average(
                predicted == truth, weights=None if sample_weight is None else np.asarray(sample_weight, dtype=float)
            )
        )

    def estimated_accuracy(self, X: ArrayLike, not_y: object) -> float:
        """Accuracy estimated from complementary labels alone (uniform ones); unbiased, so it may pass 1 or 0.

        Made for searches without true labels:
        ``GridSearchCV(model, grid, scoring=ComplementaryClassifier.estimated_accuracy).fit(X, not_y)``.
        """
        excluded = labels.to_excluded(not_y, len(self.classes_))
        probabilities = torch.from_numpy(self.predict_proba(X))
        return float(estimated_accuracy(probabilities, excluded, transitions.uniform(len(self.classes_))))


KEYWORDS = options_of(Config).keys() - set(FIXED)
FLAG = re.compile(r"--(?P<name>[a-z-]+)(?: (?P<word>(?!--)\S*[^\s.,;:()]))?")  # word: perhaps its value


@contextlib.contextmanager
def _as_keywords() -> Iterator[None]:
    """Errors leave with the options of ``cll`` written as in Python: --mix mixup becomes mix='mixup'."""
    try:
        yield
    except UserError as error:
        text = re.sub(r"(?<=The option )[a-z-]+", lambda name: name[0].replace("-", "_"), str(error))
        text = re.sub(r"\b([a-z]+) \(--\1\)", r"\1", text)  # "set batch (--batch)" has named it already
        error.args = (FLAG.sub(_keyword, text),)
        raise


def _keyword(flag: re.Match[str]) -> str:
    """A flag as a keyword argument; one that is none here stays, as in "made by cll cluster --out"."""
    name, word = flag["name"].replace("-", "_"), flag["word"]
    if name == "data":
        return "X"
    if name not in KEYWORDS:
        return flag[0]
    if word is None:
        return name
    value: Any = int(word) if word.isdigit() else word
    try:
        Config.of(**{name: value})
    except UserError:
        return f"{name} {word}"  # no value of it: the sentence goes on, as in "leave --policy out"
    return f"{name}={value!r}"


def _teller(every: float = 2.0) -> Callable[[Trainer], None]:
    """Says after the first and the last epoch, and every so many seconds, how far a training is."""
    pace = Pace(every, at_once=True)

    def tell(trainer: Trainer) -> None:
        if trainer.step_in_epoch == 0 and pace.due(anyway=trainer.done):
            row = trainer.history[-1]
            figures = [f"{name} {row[name]:.3f}" for name in ("loss", "scel") if name in row]
            to_stderr(f"{trainer.stage}epoch {trainer.epoch}/{trainer.epochs}: {', '.join(figures)}")

    return tell


def _warn_of_unnamed(excluded: Tensor) -> None:
    """Warn of classes that no label excludes: everything can hide in them. excluded [N, K]."""
    unnamed = [k for k, count in enumerate(excluded.sum(0).tolist()) if count == 0]
    if unnamed:
        warnings.warn(
            f"No example excludes class {', '.join(map(str, unnamed))}, so nothing speaks against predicting "
            "it for all; do your labels start at 1 instead of 0?",
            stacklevel=3,
        )


def as_inputs(X: ArrayLike) -> Tensor:
    """Images -> uint8 [N, C, H, W]; anything else -> float32 [N, D]."""
    array = np.asarray(X)
    if array.ndim in (3, 4):
        if array.dtype != np.uint8:
            raise UserError(f"Images must be uint8 (0..255), found {array.dtype}; convert them, or flatten to vectors.")
        images = torch.from_numpy(np.ascontiguousarray(array))
        if images.ndim == 3:
            return images[:, None]
        return images.permute(0, 3, 1, 2).contiguous() if images.shape[3] in (1, 3) else images
    if array.ndim != 2:
        raise UserError(f"X has shape {list(array.shape)}; wanted vectors [N, D] or images [N, H, W] or [N, H, W, C].")
    try:
        return torch.from_numpy(array.astype(np.float32))
    except (TypeError, ValueError):
        raise UserError(f"X holds {array.dtype} values that are not numbers; encode them first.") from None


def _statistics(inputs: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std per channel (on a 0–1 scale) or per feature."""
    if inputs.ndim == 4:
        # in slices: a float copy of all images would take four times their memory
        parts = [part.double() / 255 for part in inputs.split(4096)]
        count = inputs.numel() / inputs.shape[1]
        mean = sum(p.sum((0, 2, 3)) for p in parts) / count
        square = sum(p.square().sum((0, 2, 3)) for p in parts) / count
        std = (square - mean**2).clamp_min(0).sqrt()
    else:
        mean, std = inputs.double().mean(0), inputs.double().std(0, unbiased=False)
    return tuple(mean.tolist()), tuple(torch.where(std > 1e-8, std, 1.0).tolist())
