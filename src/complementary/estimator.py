"""`ComplementaryClassifier`: ``fit(X, not_y)``, ``predict`` and ``predict_proba`` as in scikit-learn."""

import inspect
import logging
import time
import warnings
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from complementary import labels, transitions
from complementary.config import Config
from complementary.data.dataset import Dataset, Split, as_inputs, check_finite, moments
from complementary.data.selection import usual_clusters
from complementary.encoders.seen import were_seen
from complementary.engine.backend import choose_device
from complementary.engine.loop import TrainingLoop
from complementary.errors import UserError
from complementary.reports.terminal import log_to_stderr
from complementary.scores import (
    AccuracyEstimate,
    accuracy_interval,
    balanced_accuracy_interval,
    contradictions,
    estimated_accuracy,
    estimated_accuracy_error,
)
from complementary.training.predict import Predictor
from complementary.training.recipes import resolve
from complementary.training.run import build_trainer, check_learned
from complementary.training.trainer import Trainer

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import DataConversionWarning, NotFittedError
except ImportError:  # fit and predict work without scikit-learn; only pipelines and searches need it

    class BaseEstimator:  # type: ignore[no-redef]
        """Replaces scikit-learn's."""

    class ClassifierMixin:  # type: ignore[no-redef]
        """Replaces scikit-learn's."""

    class DataConversionWarning(UserWarning):  # type: ignore[no-redef]
        """Replaces scikit-learn's."""

    class NotFittedError(ValueError, AttributeError):  # type: ignore[no-redef]
        """Replaces scikit-learn's."""


try:
    from sklearn.utils.validation import validate_data
except ImportError:  # none, or before version 1.6: names of features are not checked

    def validate_data(estimator: object, X: object, **options: object) -> None:
        """Replaces scikit-learn's."""


log = logging.getLogger(__name__)
FROM_FIT = ("data", "labels", "per_example", "long_tail", "head", "draws", "subset")  # determined by fit(X, not_y)
BELOW_CHANCE = 3.0  # standard deviations by which predictions must disagree with complementary labels


class ComplementaryClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classifier that learns from complementary labels: for each example, a class that it does *not* belong to.

    The parameters are options of `complementary.Config` and have the same names there. They are checked by `fit`.

    Args:
        recipe: A method with its usual options: "auto" (chosen for the data; usually the most accurate), "icm",
            "features", "self-training", "pocr" or "plnl". Parameters that are not at their defaults override it,
            and so do all options in ``config``, such as ``{"epochs": 100}``. "custom": the other parameters describe
            the method.
        loss: "s-nl", "s-exp", "fwd", "dm" or another name of `losses.LOSSES`; or your own function with the signature
            of `losses.Loss`, defined in a module.
        mix: How examples are mixed: "none", "mixup", "icm" or "micm".
        clusters: Number of clusters that "icm" and "micm" mix within. "auto": 50, fewer for less than 500 examples.
        encoder: What is clustered: "pixels" (the inputs), features of an encoder such as "simsiam", "run:FOLDER" or
            "file:WEIGHTS", or "auto": an encoder that is stored for these images, else the inputs.
        alpha: Parameter of the Beta or Dirichlet distribution of the mixing weights.
        model: "linear", "mlp", "cnn" or "resnet18". "auto": "cnn" for images of 16 pixels and more, else "mlp".
        epochs: Passes over the training examples.
        batch: Batch size. "auto": 256, less for fewer than 1,024 examples.
        lr: Learning rate of Adam.
        holdout: Share of the examples held out as a validation split. The epoch that predicts their complementary
            labels best is kept. 0: keep the last epoch.
        transition: Transition matrix of the labels: "auto" and "uniform" (all wrong classes equally likely),
            "matrix:FILE.csv", a matrix [K, K] (row: true class, column: probability of each complementary label), or
            "estimate" (from the data, without true labels).
        flip: Flip images horizontally at random. Set it to False if a mirrored image may belong to another class.
        padding: Random crops of images: pixels of padding; None: an eighth of the height; 0: no crops.
        seed: Determines the validation split, the clusters, the initial weights and every random draw.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1" ...
        verbose: Log the progress on stderr.
        config: Further options of `complementary.Config` by name, such as ``{"policy": "randaugment"}``.

    Attributes:
        predictor_: The trained network with its normalization, a `complementary.training.predict.Predictor`.
        history_: One dictionary per epoch: training loss and, with a validation split, truth-free scores.
        classes_: The classes [K]: names, or the numbers 0 to K-1. Columns of ``predict_proba`` are in this order.
        n_features_in_: Number of features, or of pixels times channels, of an example.
        feature_names_in_: Names of the columns of X, if it was a DataFrame with names; predictions need the same ones.
        transition_: The transition matrix that was used, float64 [K, K].
        transition_estimate_: How precise it is, if it was estimated; else None.
        encoder_: Name of the encoder that computes the inputs of the network or that it was initialized with, or None.
        encoder_images_: Digests of the images that this encoder was pretrained on, int64 [P] (see
            `complementary.encoders.seen`); None: not known, or there is no encoder.

    Example:
        >>> import numpy as np
        >>> from complementary import ComplementaryClassifier
        >>> x = np.random.default_rng(0).normal(size=(300, 2)) + np.repeat([[0, 0], [6, 0], [0, 6]], 100, axis=0)
        >>> not_y = np.repeat([1, 2, 0], 100)      # the first hundred are "not class 1", and so on
        >>> not_y[::2] = np.repeat([2, 0, 1], 100)[::2]
        >>> model = ComplementaryClassifier(mix="none", epochs=30, batch=50).fit(x, not_y)
        >>> model.predict([[0, 0], [6, 0], [0, 6]]).tolist()
        [0, 1, 2]
    """

    def __init__(
        self,
        *,
        recipe: str = "custom",
        loss: str = "s-nl",
        mix: str = "icm",
        clusters: int | Literal["auto"] = "auto",
        encoder: str = "auto",
        alpha: float = 0.4,
        model: str = "auto",
        epochs: int = 100,
        batch: int | Literal["auto"] = "auto",
        lr: float = 1e-3,
        holdout: float = 0.1,
        transition: str | ArrayLike = "auto",
        flip: bool = True,
        padding: int | None = None,
        seed: int = 0,
        device: str = "auto",
        verbose: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.recipe = recipe
        self.loss = loss
        self.mix = mix
        self.clusters = clusters
        self.encoder = encoder
        self.alpha = alpha
        self.model = model
        self.epochs = epochs
        self.batch = batch
        self.lr = lr
        self.holdout = holdout
        self.transition = transition
        self.flip = flip
        self.padding = padding
        self.seed = seed
        self.device = device
        self.verbose = verbose
        self.config = config

    def fit(self, X: ArrayLike, not_y: object, classes: int | Sequence[Hashable] | None = None) -> Self:
        """Train on examples and their complementary labels.

        Args:
            X: Vectors [N, D], or images uint8 [N, H, W], [N, H, W, C] or [N, C, H, W].
            not_y: The classes that the examples do not belong to, as names or as numbers from 0: one per example [N], a
                list of sets or lists of different length, or a 0/1 matrix [N, K]. A pandas Series or DataFrame is fine
                (see `labels.encode`).
            classes: The classes in order, or their number K. Default: the names in ``not_y``, sorted, or the numbers up
                to the largest label. Pass them if some class is never excluded, or if the names are numbers such as
                years.

        Returns:
            The estimator itself.
        """
        config, device = self._options(), choose_device(self.device)
        validate_data(self, X, reset=True, skip_check_array=True, ensure_2d=False)  # names of features
        inputs = _check_inputs(X)
        if len(inputs) < 2:
            raise UserError("X has 1 sample; at least 2 are required.")
        excluded, found = _read_labels(not_y, classes, len(inputs))
        names = tuple(map(str, found))
        dataset = Dataset("X", Split(inputs, excluded=excluded), None, names, *moments(inputs))
        with log_to_stderr() if self.verbose else nullcontext():
            config = _sized(resolve(config, dataset, device), self, len(inputs))
            trainer = build_trainer(config, str(device), dataset, progress=_EpochLog())
            trainer.run(_EpochLog())
            check_learned(trainer)
        self.predictor_ = _predictor(trainer).to("cpu")
        self.history_: list[dict[str, Any]] = trainer.history
        self.classes_ = np.array(found)
        self.n_features_in_ = int(np.prod(inputs.shape[1:]))
        self.transition_: NDArray[np.float64] = trainer.task.transition.double().cpu().numpy()
        self.transition_estimate_ = trainer.task.transition_estimate
        used = trainer.encoder
        self.encoder_ = None if used is None else str(trainer.task.data_summary.get("encoder", self.encoder))
        self.encoder_images_ = None if used is None else used.seen
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float32]:
        """Class probabilities, float32 [N, K], of examples as in `fit`."""
        if not hasattr(self, "predictor_"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet; call fit(X, not_y) first.")
        validate_data(self, X, reset=False, skip_check_array=True, ensure_2d=False)  # names of features
        inputs = _check_inputs(X)
        if inputs.shape[1:] != (trained := self.predictor_.shape) and max(inputs.ndim - 1, len(trained)) == 3:
            found, wanted = (_shape_text(shape) for shape in (inputs.shape[1:], trained))
            raise UserError(f"X has {found} per example, but {type(self).__name__} was fitted on {wanted}; resize X.")
        if (features := int(np.prod(inputs.shape[1:]))) != self.n_features_in_:
            expected = f"{type(self).__name__} is expecting {self.n_features_in_} features as input"
            raise UserError(f"X has {features} features, but {expected}.")
        probabilities = self.predictor_.to(choose_device(self.device))(inputs).cpu().numpy()
        self.predictor_.to("cpu")  # where it stays, so that it can be pickled and loaded without a GPU
        return probabilities

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class of each example, [N]."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]  # type: ignore[no-any-return]

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy against *true* labels ``y`` [N]. Without true labels, use `estimated_accuracy`.

        scikit-learn's searches call this by default. If they pass complementary labels, the best model agrees with them
        least. So if the agreement is significantly below that of the same predictions in random order, the result is
        `estimated_accuracy`, with a warning, and a search still selects a good model.
        """
        predicted, truth = self.predict(X), np.asarray(y)
        if self.classes_.dtype.kind == "U" and truth.dtype.kind in "biuf":
            raise UserError(f"y contains numbers, but the classes are {', '.join(self.classes_[:5])}; use their names.")
        if truth.shape != predicted.shape:
            raise UserError(f"X has {len(predicted)} examples but y has shape {list(truth.shape)}; they must match.")
        weights = None if sample_weight is None else np.asarray(sample_weight, dtype=float)
        chosen = torch.from_numpy((predicted[:, None] == self.classes_).argmax(1))
        found = contradictions(chosen, torch.from_numpy(truth[:, None] == self.classes_))
        if found.z > BELOW_CHANCE:
            warnings.warn(
                f"score: predictions and y agree for {found.found} of {len(truth)} examples, significantly below "
                f"chance (about {found.expected:.0f}), so y is taken for complementary labels and the estimated "
                "accuracy is returned. Use scoring=ComplementaryClassifier.estimated_accuracy, or truth. If y is the "
                "truth, the classifier is worse than chance: it may have been trained with true labels.",
                stacklevel=2,
            )
            return self.estimated_accuracy(X, truth)
        return float(np.average(predicted == truth, weights=weights))

    def estimated_accuracy(self, X: ArrayLike, not_y: object) -> float:
        """Accuracy estimated from complementary labels alone, with the transition matrix of the fit.

        For examples that were not used in training, and labels that follow the matrix, its mean is the accuracy, so a
        single value may exceed 1 or be negative; `accuracy_estimate` says how precise it is. It allows searches without
        true labels: ``GridSearchCV(model, grid, scoring=ComplementaryClassifier.estimated_accuracy).fit(X, not_y)``.
        The best score of a search is too high, because it is the best of many; estimate again on other examples. As
        ``scoring`` it also takes a Pipeline or a search whose last step is such a classifier.
        """
        classifier = _classifier_of(self)
        probabilities = torch.from_numpy(np.asarray(self.predict_proba(X)))
        excluded, _ = _read_labels(not_y, classifier.classes_.tolist(), len(probabilities))
        matrix = torch.from_numpy(classifier.transition_)
        found = float(estimated_accuracy(probabilities, excluded, matrix))
        if found < -2 * float(estimated_accuracy_error(probabilities, excluded, matrix)):
            warnings.warn(
                f"The estimated accuracy is {found:.2f}, far below 0: the predictions agree with the labels more often "
                "than chance. The labels may be true classes instead of classes that the examples do not belong to.",
                stacklevel=2,
            )
        return found

    def accuracy_estimate(
        self, X: ArrayLike, not_y: object, population: Literal["data", "balanced"] = "data"
    ) -> AccuracyEstimate:
        """Accuracy estimated from complementary labels alone, with its 95 % confidence interval.

        Args:
            X: Examples that were not used in training, as in `fit`. If the encoder was pretrained on some of them, or
                if it is not known which images it was pretrained on, a warning says so: for new images the estimate may
                then be too high. This holds for an encoder that stays frozen and for one that was fine-tuned.
            not_y: Their complementary labels, as in `fit`.
            population: ``data``: examples like these; ``balanced``: the same with classes of equal size.

        Returns:
            ``value``, ``low``, ``high`` and, if no number can be given, the ``reason``, with a warning. If the
            transition matrix was estimated, its error is part of the interval.
        """
        predicted = torch.from_numpy(self.predict_proba(X)).argmax(1)
        excluded, _ = _read_labels(not_y, self.classes_.tolist(), len(predicted))
        self._warn_if_seen(X)
        interval = accuracy_interval if population == "data" else balanced_accuracy_interval
        found = interval(predicted, excluded, torch.from_numpy(self.transition_), self.transition_estimate_)
        if found.reason:
            warnings.warn(f"There is no estimate of the accuracy: {found.reason}", stacklevel=2)
        return found

    def _warn_if_seen(self, X: ArrayLike) -> None:
        """Warn if the encoder was pretrained on some of the examples, or if that is not known."""
        name, seen = getattr(self, "encoder_", None), getattr(self, "encoder_images_", None)
        if name is None:
            return
        if seen is None:
            warnings.warn(
                f"It is not known which images the encoder {name} was pretrained on. If these images are among them, "
                "the estimate is too high for new images.",
                stacklevel=3,
            )
            return
        inputs = _check_inputs(X)
        if count := int(were_seen(inputs, seen).sum()):
            warnings.warn(
                f"The encoder was pretrained on {count:,} of these {len(inputs):,} images, which it represents better "
                "than new ones; for new images the estimate is too high. Use images that it has not seen.",
                stacklevel=3,
            )

    def _options(self) -> Config:
        """The configuration; raises if an option is wrong."""
        own = {name: value for name, value in vars(self).items() if name in OWN}
        if not isinstance(self.transition, str):
            own["transition"] = transitions.to_text(self.transition)
        if self.recipe != "custom":
            defaults = inspect.signature(type(self)).parameters
            own = {name: value for name, value in own.items() if value != defaults[name].default}
        further = dict(self.config or {})
        if further.get("optimizer") == "sgd" and own.get("lr") == Config().training.lr:
            del own["lr"]  # not given: that of SGD
        for name in further:
            if name in own or name in FROM_FIT or name in ("clusters", "batch"):
                reason = "comes with fit(X, not_y)" if name in FROM_FIT else "is a parameter of the classifier"
                raise UserError(f"config sets {name!r}, which {reason}; remove it there.", name)
        return Config.of(labels="given", recipe=self.recipe, **own, **further)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.classifier_tags.poor_score = True  # scikit-learn's checks train with y = true labels; here y means "not"
        tags.non_deterministic = False
        return tags


def _classifier_of(model: Any) -> ComplementaryClassifier:
    """The classifier itself, that at the end of a Pipeline, or the best one of a search."""
    while not isinstance(model, ComplementaryClassifier):
        if hasattr(model, "steps"):
            model = model.steps[-1][1]
        elif hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        else:
            raise UserError(
                f"estimated_accuracy needs a ComplementaryClassifier, or a Pipeline that ends with one; found "
                f"{type(model).__name__}."
            )
    return model


OWN = (
    *("loss", "mix", "encoder", "alpha", "model", "epochs", "lr", "holdout"),
    *("transition", "flip", "padding", "seed"),
)


def _sized(config: Config, model: ComplementaryClassifier, count: int) -> Config:
    """Batch size and number of clusters that suit ``count`` examples, if they are "auto"."""
    custom = config.training.recipe == "custom"
    usual = (256, 50) if custom else (config.training.batch, config.cluster.clusters)
    batch = min(usual[0], max(2, count // 4)) if model.batch == "auto" else model.batch
    clusters = usual_clusters(count, usual[1]) if model.clusters == "auto" else model.clusters
    given = {name for name in ("batch", "clusters") if getattr(model, name) != "auto"}
    return config.with_(batch=batch, clusters=clusters).with_given(config.given | given)


def _predictor(trainer: Trainer) -> Predictor:
    """The network with the weights of the selected epoch, without anything that was only needed for training."""
    decoder = trainer.selected_decoder if trainer.selected else trainer.criterion.decoder()
    if trainer.selected:
        trainer.evaluated.load_state_dict(trainer.selected)
    network, task = trainer.evaluated.eval(), trainer.task
    network.zero_grad(set_to_none=True)
    shape = task.shape if task.encoder is None else task.encoder.shape
    return Predictor(network, task.classes, shape, task.mean, task.std, task.encoder, decoder=decoder)


class _EpochLog:
    """Logs the first and the last epoch, and others at most every two seconds."""

    def __init__(self) -> None:
        self.last = float("-inf")

    def __call__(self, trainer: TrainingLoop) -> None:
        now = time.monotonic()
        if trainer.step_in_epoch == 0 and (trainer.done or now - self.last >= 2):
            self.last, row = now, trainer.history[-1]
            metrics = ", ".join(f"{name} {row[name]:.3f}" for name in ("loss", "scel") if name in row)
            log.info("%sepoch %d/%d: %s", trainer.stage, trainer.epoch, trainer.epochs, metrics)


def _check_inputs(X: ArrayLike) -> Tensor:
    """Images uint8 [N, C, H, W] or vectors float32 [N, D], all values finite."""
    if hasattr(X, "tocsr"):
        raise UserError("X is sparse, which is not supported; convert it with X.toarray().")
    array, columns = np.asarray(X), list(X.columns) if hasattr(X, "columns") else None
    if np.iscomplexobj(array):
        raise UserError("Complex data not supported: X has type complex.")
    if array.ndim < 2:
        raise UserError(
            f"X has shape {list(array.shape)}, expected [N, D] or images. Reshape your data: X.reshape(-1, 1) if it "
            "has a single feature, X.reshape(1, -1) if it is a single example."
        )
    if array.size == 0:
        found = f"X has {len(array)} example(s) and {int(np.prod(array.shape[1:]))} feature(s)"
        raise UserError(f"{found} (shape={array.shape}) while a minimum of 1 is required.")
    if array.dtype == object:
        try:
            array = array.astype(np.float64)
        except ValueError as error:  # a TypeError says itself what is wrong
            where = _column_of(array, columns)
            raise UserError(f"X has type object, and not all values of {where} are numbers: {error}.") from None
    inputs = as_inputs(array)
    check_finite("Input X", inputs, columns)
    return inputs


def _shape_text(shape: Sequence[int]) -> str:
    """``16 x 16 x 3 pixels`` for an image [C, H, W], ``5 features`` for a vector [D]."""
    if len(shape) != 3:
        return f"{int(np.prod(shape))} features"
    return f"{shape[1]} x {shape[2]} x {shape[0]} pixels"


def _column_of(values: NDArray[Any], columns: Sequence[object] | None) -> str:
    """The first column of an object array [N, D] with a value that is no number, for a message."""
    for k, column in enumerate(values.reshape(len(values), -1).T):
        try:
            column.astype(np.float64)
        except (TypeError, ValueError):
            return f"column {k if columns is None else repr(columns[k])}"
    return "a column"


def _read_labels(not_y: Any, classes: int | Sequence[Hashable] | None, examples: int) -> labels.Encoded:
    """Complementary labels of N = ``examples`` as ``excluded`` uint8 [N, K], and the classes; see `labels.encode`."""
    if not_y is None:
        raise UserError("fit requires y to be passed, but the target y is None; pass complementary labels as not_y.")
    if hasattr(not_y, "tocsr"):
        raise UserError("not_y is sparse, which is not supported; convert it with not_y.toarray().")
    if hasattr(not_y, "__array__") and not isinstance(not_y, Tensor) and not hasattr(not_y, "to_numpy"):
        not_y = np.asarray(not_y)
        if not_y.dtype.kind == "c" or (not_y.dtype.kind == "f" and not np.array_equal(not_y, np.round(not_y))):
            bad = np.flatnonzero(~(not_y == np.round(not_y)).reshape(len(not_y), -1).all(1))
            raise UserError(
                f"Unknown label type: not_y has continuous or missing values, first in example {bad[0]}. Labels are "
                "numbers or names of classes; leave examples without a label out of X and not_y."
            )
    if getattr(not_y, "ndim", 0) == 2 and not_y.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected; use not_y.ravel().",
            DataConversionWarning,
            stacklevel=3,
        )
        not_y = not_y.iloc[:, 0] if hasattr(not_y, "iloc") else not_y[:, 0]
    found = labels.encode(not_y, classes)
    if len(found.excluded) != examples:
        raise UserError(f"X has {examples} examples but not_y has {len(found.excluded)}; they must match.")
    return found
