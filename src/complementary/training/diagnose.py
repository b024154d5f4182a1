"""Gather the report of a finished run: predictions, estimates, suspicious answers and baselines."""

import dataclasses
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from complementary import scores
from complementary.clusters.compare import MAX_EXAMPLES, cross_fit_linear, fit_linear, reduce
from complementary.config import CLOSED_FORM, Config
from complementary.data.rows import rows_of
from complementary.data.selection import label_source
from complementary.encoders.seen import were_seen
from complementary.engine.backend import choose_device, device_name
from complementary.engine.loop import Progress
from complementary.errors import require
from complementary.reports.answers import (
    AnswerNoise,
    RankedAnswers,
    class_posterior,
    rank_answers,
    unknown_noise,
    with_errors,
)
from complementary.reports.calibration import calibration, with_temperature
from complementary.reports.confusions import (
    Confusions,
    Estimated,
    class_estimates,
    estimate_accuracy,
    estimate_confusions,
    estimate_prior,
    model_confusions,
    oracle_confusions,
)
from complementary.reports.run_report import INTERVAL, Accuracy, ClassRow, RunReport, Uncertain
from complementary.rng import generator
from complementary.training.cross_fit import cross_fit
from complementary.training.estimates import ASSUMED_UNIFORM
from complementary.training.finished import ENOUGH, FinishedRun, open_run
from complementary.training.run import BASELINES

log = logging.getLogger(__name__)
AUTO_FOLDS, AUTO_SECONDS = 5, 180  # cross-fit by default if it takes less than three minutes
SEEN = "the encoder was pretrained on"
UNKNOWN_ERROR = (
    "No accuracy is estimated: the transition matrix was estimated, and without held-out examples its error is not "
    "known. Train with a holdout, or give the matrix."
)
OF_THIS_MODEL = "Estimated accuracy of this model"
CONSIDERED, IF_NONE = ", wrong answers considered", ", if no answer is wrong"
UNCORRECTED = f"{OF_THIS_MODEL}{IF_NONE}"
SINGULAR = "With this share of wrong answers, the answers do not determine the classes."
UNJUDGED = (
    "There are {count} held-out examples, too few to judge answers by them, so the rate of wrong answers is not "
    "estimated and no answer is flagged; the answers are ranked by predictions of the training examples. A cross-fit "
    "with {folds} folds judges all of them by models that have not seen them."
)
ASSUMES_UNIFORM = (
    "All estimates hold if right answers exclude all wrong classes equally often, because the transition matrix of the "
    "answers is not known. With transition = estimate, it is estimated."
)
HALVES_AGREE = math.sqrt(2)  # factor of an error: two halves that predict each other may be wrong in the same direction
MAX_UNCERTAIN = 200  # examples for which one more answer is suggested
MAX_IN_SAMPLE = 10_000  # training examples to predict without a GPU, which takes minutes for images
PRECISE = 0.005  # largest standard error of a confusion for which it is estimated without the model


def diagnose(
    folder: str | Path,
    *,
    weights: str = "auto",
    folds: int | None = None,
    top: int = 24,
    baselines: bool = True,
    device: str = "auto",
    progress: Progress | None = None,
) -> RunReport:
    """Make the report of a finished run.

    Args:
        folder: Folder of the run.
        weights: ``selected``, ``last`` or ``auto``, as in `complementary.load`.
        folds: Parts of a cross-fit, which predicts every example by a model that has not seen its answers. 0: none;
            then only the answers of the validation split are judged out of sample. None: 5, if that takes less than
            about three minutes.
        top: Number of suspicious answers and of uncertain examples that have images in the report.
        baselines: Whether to fit a linear layer to the raw inputs for comparison.
        device: Where to compute.
        progress: Called after every training step of the cross-fit.
    """
    run = open_run(folder, weights, device)
    held = run.held_out.nonzero()[:, 0]
    notes: list[str] = []
    chosen = _folds(run, folds, notes)
    fitted = cross_fit(_as_trained(run), run.dataset, chosen, device, progress) if chosen else None
    held_probabilities = run.probabilities(held)
    judged = _judge(run, held, held_probabilities, fitted, notes)
    answers, noise = judged.answers, judged.answers.noise
    matrix = _matrix(run, noise)
    matrix_error = _matrix_error(run, held_probabilities)
    if matrix_error is None:  # as for labels that do not determine the classes: nothing rests on its inverse
        matrix = torch.full_like(matrix, 1 / len(matrix))
        if not len(held):
            notes.append(UNKNOWN_ERROR)
    test, truth = run.test_probabilities(), None if run.dataset.test is None else run.dataset.test.truth
    unseen = judged.probabilities[judged.unseen]  # those of the cross-fit, or the held-out ones
    predicted, excluded = unseen.argmax(1), run.excluded[judged.rows[judged.unseen]]
    confusions = [_confusions(unseen, excluded, matrix, noise)] if len(unseen) else []
    calibrations = [calibration(held_probabilities, run.excluded[held], matrix)] if len(held) else []
    calibrations = [dataclasses.replace(found, assumption=_assumption(run, noise)) for found in calibrations]
    if test is not None and truth is not None:
        confusions.append(oracle_confusions(test.argmax(1), truth, len(run.predictor.classes)))
        calibrations.append(calibration(test, truth=truth))
    uncertain = _uncertain(run, judged, max(top, MAX_UNCERTAIN))
    annotator_of, given_as = _as_given(run, answers, max(4 * top, 200))
    report = RunReport(
        title=f"Report of {Path(folder).name}: {run.config.dataset.data}",
        classes=run.predictor.classes,
        accuracies=_accuracies(run, held_probabilities, fitted, noise, test, truth, matrix_error),
        baselines=_baselines(run, noise, matrix_error, baselines),
        by_class=_by_class(run, predicted, excluded, matrix, test, truth),
        calibrations=calibrations,
        confusions=confusions,
        answers=answers,
        out_of_sample=judged.out_of_sample(),
        uncertain=uncertain,
        annotators=_annotators(run, judged),
        basis=_basis(run, noise, held_probabilities),
        notes=notes + _stored_notes(run, noise),
        names=_names(run),
        annotator_of=annotator_of,
        given_as=given_as,
    )
    shown = {found.example for found in report.ranked(top)} | {row.example for row in uncertain[:top]}
    return dataclasses.replace(report, images=_images(run, shown))


# --- cross-fitting and answers ----------------------------------------------------------------------------------------


def _folds(run: FinishedRun, folds: int | None, notes: list[str]) -> int:
    """Number of parts of the cross-fit; 0: none."""
    if folds is not None:
        require(folds == 0 or folds >= 2, "folds", folds, "at least 2, or 0 for none")
        if folds == 0:
            notes.append(_in_sample(run))
        return folds
    seconds = AUTO_FOLDS * _training_seconds(run.result)
    same_device = run.result.get("device") == device_name(choose_device(run.device))
    if same_device and seconds <= AUTO_SECONDS:
        return AUTO_FOLDS
    time = f"about {max(1, round(seconds / 60))} minutes" if same_device and seconds < math.inf else "a while"
    notes.append(f"{_in_sample(run)} A cross-fit with {AUTO_FOLDS} folds judges all of them out of sample ({time}).")
    return 0


def _training_seconds(result: dict[str, Any]) -> float:
    """How long the trainings of a run took, with those that came before the last one; infinite if it is not known."""
    parts = [result.get(name) for name in ("train_seconds", "seconds_before")]
    return math.inf if None in parts else sum(float(part) for part in parts if part is not None)


def _as_trained(run: FinishedRun) -> Config:
    """The configuration, with as many epochs as the weights were trained for.

    All epochs where their number determines the learning rate (SGD, self-training and the baselines), and if they were
    those of a layer before the discriminant.
    """
    epoch, config = run.result.get("selected_epoch"), run.config
    t = config.training
    constant = t.fit == "neighbors" or (t.fit != "discriminant" and t.optimizer == "adam")
    plain = t.recipe not in BASELINES and not config.pseudo_labels.self_training
    shorter = run.weights == "selected" and constant and plain
    return config.with_(epochs=int(epoch)) if shorter and epoch else config


def _in_sample(run: FinishedRun) -> str:
    held = int(run.held_out.sum())
    if not held:
        return "The model was trained on all answers, so wrong ones among them are partly hidden."
    return (
        f"Only the answers of the {held:,} held-out examples were judged out of sample. The model was trained on the "
        "other answers, so wrong ones among them are partly hidden."
    )


def _stored_notes(run: FinishedRun, noise: AnswerNoise) -> list[str]:
    """The notes of the run about its estimates, with what the report has found out about wrong answers."""
    stored = list(run.result.get("estimate_notes") or [])
    if ASSUMED_UNIFORM not in stored or run.errors_known:
        return stored
    own = [note for note in stored if note != ASSUMED_UNIFORM]
    if noise.is_unknown:
        found = "Whether some answers are wrong was not checked."
    elif noise.is_significant:
        found = (
            "Answers contradict the model more often than its own mistakes explain, so numbers that hold only if no "
            "answer is wrong are too low."
        )
    else:
        p = min(noise.p_value, noise.yes_p_value)
        found = f"The answers that were judged do not show that some are wrong (p = {p:.2g}), nor that all are right."
    return [*own, f"{found} {ASSUMES_UNIFORM}"]


def _base(run: FinishedRun) -> Tensor:
    """The transition matrix that right answers follow."""
    return run.transition.double().cpu()


@dataclass(frozen=True)
class _Judged:
    """The ranked answers, and the predictions behind them.

    Attributes:
        answers: The answers of the examples at ``rows``; positions are those among all M examples of the run.
        rows: The examples that were judged, int [R].
        probabilities: Their class probabilities, [R, K].
        unseen: Which of them were predicted by a model that had not seen their answers, bool [R].
    """

    answers: RankedAnswers
    rows: Tensor
    probabilities: Tensor
    unseen: Tensor

    def out_of_sample(self) -> list[bool]:
        """For each ranked answer, whether the model had not seen it."""
        return torch.isin(torch.from_numpy(self.answers.example), self.rows[self.unseen]).tolist()


def _judge(
    run: FinishedRun, held: Tensor, held_probabilities: Tensor, fitted: Tensor | None, notes: list[str]
) -> _Judged:
    """Rank the answers: all of them by the cross-fit, else by the model itself."""
    rows, base = torch.arange(len(run.index)), _base(run)
    if fitted is not None:
        return _Judged(rank_answers(run.excluded, fitted, base), rows, fitted, torch.ones(len(rows), dtype=torch.bool))
    if len(held) >= ENOUGH:
        noise = rank_answers(run.excluded[held], held_probabilities, base).noise
    else:
        noise = unknown_noise(base)
        notes.append(UNJUDGED.format(count=len(held), folds=AUTO_FOLDS))
    training = (~run.held_out).nonzero()[:, 0]
    if not noise.is_unknown and len(training) > MAX_IN_SAMPLE and choose_device(run.device).type == "cpu":
        notes.append(f"The answers of the {len(training):,} training examples were not judged, to save time.")
        training = training[:0]
    rows = torch.cat([held, training])
    probabilities = torch.cat([held_probabilities, run.probabilities(training)])
    unseen = torch.arange(len(rows)) < len(held)
    ranked = rank_answers(run.excluded[rows], probabilities, base, noise=noise)
    answers = dataclasses.replace(ranked, example=rows.numpy()[ranked.example])
    return _Judged(answers, rows, probabilities, unseen)


def _matrix(run: FinishedRun, noise: AnswerNoise) -> Tensor:
    """The transition matrix with the estimated errors, if the answers show any, and people gave them."""
    base = _base(run)
    return with_errors(base, noise.label_rate.value) if _is_corrected(run, noise) else base


def _as_given(
    run: FinishedRun, answers: RankedAnswers, top: int
) -> tuple[dict[tuple[int, int], str], dict[tuple[int, int], str]]:
    """Who gave the suspicious answers and, for "yes cat", in which words; both by example and excluded class."""
    given = run.dataset.answers
    if given is None:
        return {}, {}
    wanted = max(top, 4 * int(answers.is_issue.sum()))
    who: dict[tuple[int, int], str] = {}
    words: dict[tuple[int, int], str] = {}
    names, classes = given.annotator_names(), run.predictor.classes
    order = given.example.argsort(stable=True)
    sorted_examples = given.example[order]
    for example, answer in zip(answers.example[:wanted].tolist(), answers.answer[:wanted].tolist(), strict=True):
        place = run.index[example]
        first, last = (int(torch.searchsorted(sorted_examples, place, right=right)) for right in (False, True))
        rows = [row for row in order[first:last].tolist() if given.excluded[row, answer] > 0]
        who[example, answer] = ";".join(dict.fromkeys(names[row] for row in rows if names[row]))
        meant = {_confirmed(given.excluded[row], classes) for row in rows}
        if len(meant) == 1 and (name := meant.pop()) is not None:
            words[example, answer] = f"yes {name}"
    return {pair: names for pair, names in who.items() if names}, words


def _confirmed(excluded: Tensor, classes: tuple[str, ...]) -> str | None:
    """The only class that an answer, 0/1 [K], leaves possible; None: it leaves several, or there are only two."""
    possible = (excluded == 0).nonzero()[:, 0].tolist()
    return classes[possible[0]] if len(possible) == 1 and len(classes) > 2 else None


def _annotators(run: FinishedRun, judged: _Judged) -> list[tuple[str, int, Estimated]]:
    """Estimated error rate of each annotator, the highest first, from answers that were judged out of sample."""
    given, rows = run.dataset.answers, judged.rows[judged.unseen]
    if given is None or not given.annotators or not len(rows) or judged.answers.noise.is_unknown:
        return []
    chosen = given.take(run.index[rows])
    calibrated = with_temperature(judged.probabilities[judged.unseen].double(), judged.answers.noise.temperature)
    rates = scores.annotator_error_rates(
        chosen.excluded, chosen.annotator_names(), calibrated[chosen.example], _base(run)
    )
    found = [(str(name) or "(not named)", r.answers, Estimated(r.value, r.error)) for name, r in rates.items()]
    return sorted(found, key=lambda row: -row[2].value)


# --- how good the model is --------------------------------------------------------------------------------------------


def _accuracies(
    run: FinishedRun,
    probabilities: Tensor,
    fitted: Tensor | None,
    noise: AnswerNoise,
    test: Tensor | None,
    truth: Tensor | None,
    matrix_error: float | None,
) -> list[Accuracy]:
    """The unbiased estimates, the most precise one first, then that of the calibrated model and the oracle value."""
    found: list[Accuracy] = []
    held, data, excluded = len(probabilities), run.config.dataset.data, run.excluded[run.held_out]
    corrected, assumption = _is_corrected(run, noise), _assumption(run, noise)
    population = f"examples like the {held:,} held-out ones of {data}{_seen(run, run.held_out)}"
    everyone = f"examples like all {len(run.index):,} of {data}{_seen(run, torch.ones_like(run.held_out))}"
    if held and matrix_error is not None:
        found += _stored(run, data)
        predicted = probabilities.argmax(1)
        if corrected or not found:
            name = f"{OF_THIS_MODEL}{assumption}"
            found.append(_accuracy(run, predicted, excluded, noise, name, population, matrix_error))
        if corrected and len(found) == 1:
            plain = estimate_accuracy(predicted, excluded, _base(run))
            found.append(_checked(Accuracy(UNCORRECTED, plain, population)))
    if fitted is not None and matrix_error is not None:
        name = f"Estimated accuracy of the recipe, cross-fitted{assumption}"
        found.append(_accuracy(run, fitted.argmax(1), run.excluded, noise, name, everyone, matrix_error))
    found = [dataclasses.replace(a, refuted=corrected and a.name == UNCORRECTED) for a in found]
    found.sort(key=_rank)
    if fitted is not None or (held and not noise.is_unknown):
        value = _confidence(probabilities if fitted is None else fitted, noise)
        name, of = ("this model", population) if fitted is None else ("the recipe, cross-fitted", everyone)
        found.append(Accuracy(f"Calibrated confidence of {name}", value, of))
    if test is not None and truth is not None:
        found.append(_counted("Test accuracy", test.argmax(1), truth))
    return found


def _rank(accuracy: Accuracy) -> tuple[bool, bool, bool, float]:
    """What comes first: a number that the answers do not refute, for new images, and the most precise one."""
    low, high = accuracy.interval()
    return accuracy.refuted, bool(accuracy.reason), SEEN in accuracy.population, high - low


def _is_corrected(run: FinishedRun, noise: AnswerNoise) -> bool:
    """Whether estimates use the rate of wrong answers that was estimated."""
    return noise.is_significant and not run.errors_known


def _assumption(run: FinishedRun, noise: AnswerNoise) -> str:
    """What an estimate says about wrong answers, at the end of its name."""
    if run.errors_known:
        return ""
    return CONSIDERED if _is_corrected(run, noise) else IF_NONE


def _accuracy(
    run: FinishedRun,
    predicted: Tensor,
    excluded: Tensor,
    noise: AnswerNoise,
    name: str,
    population: str,
    matrix_error: float,
    widened: float = 1.0,
) -> Accuracy:
    """The estimated accuracy of a model or a baseline, with the error of the estimated rate of wrong answers.

    ``widened`` multiplies the error of the sample.

    If wrong answers are considered, the interval also includes the case that all answers are right: confident mistakes
    of the model look the same as wrong answers.
    """
    base = _base(run)

    def estimate(matrix: Tensor) -> Estimated:
        value, error = estimate_accuracy(predicted, excluded, matrix)
        return Estimated(value, widened * error)

    found = estimate(_matrix(run, noise))
    if not _is_corrected(run, noise):
        return _checked(Accuracy(name, Estimated(found.value, math.hypot(found.error, matrix_error)), population))
    higher = estimate(with_errors(base, noise.label_rate.value + noise.label_rate.error / 10))
    error = math.hypot(found.error, 10 * (higher.value - found.value))
    considered = _checked(Accuracy(name, Estimated(found.value, error), population))
    if considered.reason:
        return considered
    low, high = considered.interval()
    lowest = Accuracy(name, estimate(base), population).interval()[0]
    return dataclasses.replace(considered, bounds=(min(low, lowest), high))


def _checked(accuracy: Accuracy) -> Accuracy:
    """No number, with the reason, if the interval is too wide, or outside 0 to 1: the matrix does not fit then."""
    value, error = accuracy.estimate
    width = 2 * INTERVAL * error
    if math.isnan(value + error):
        reason = SINGULAR
    elif value - width / 2 > 1 or value + width / 2 < 0:
        reason = scores.MISFIT
    elif width > scores.WIDEST:
        reason = f"There are too few answers: its 95 % interval would be {100 * width:.0f} points wide."
    else:
        return accuracy
    return dataclasses.replace(accuracy, estimate=Estimated(math.nan, math.nan), reason=reason)


def _matrix_error(run: FinishedRun, held: Tensor) -> float | None:
    """Standard error of an estimated accuracy because the matrix was estimated.

    It follows from the result of the run, whose interval includes it, and the probabilities ``held`` [V, K] of the
    held-out examples. None: the matrix is too uncertain, or its error is not known because nothing was held out.
    """
    if run.config.training.transition != "estimate":
        return 0.0
    if not len(held):
        return None
    result, names = run.result, ("estimated_accuracy", "estimated_seen_accuracy")
    name = next((name for name in names if result.get(f"{name}_error") is not None), None)
    if name is None:
        return None
    sampled = estimate_accuracy(held.argmax(1), run.excluded[run.held_out], _base(run)).error
    return math.sqrt(max(0.0, float(result[f"{name}_error"]) ** 2 - sampled**2))


def _seen(run: FinishedRun, chosen: Tensor) -> str:
    """A clause about the encoder, if it was pretrained on some of the examples ``chosen`` bool [M]."""
    encoder, data = run.predictor.encoder, run.result.get("data", {})
    if encoder is not None and encoder.seen is not None:
        count = int(were_seen(rows_of(run.dataset.train.inputs, run.index[chosen]), encoder.seen).sum())
        every = "all" if count == int(chosen.sum()) else f"{count:,}"
    else:  # fine-tuned, or an encoder file without a record: the run has counted
        count = int(data.get("held_out_seen", 0))
        every = "all" if count == int(run.held_out.sum()) else "some"
    return f"; {SEEN} {every} of them" if count else ""


def _stored(run: FinishedRun, data: str) -> list[Accuracy]:
    """The estimates in the result of the run, if they are for these weights. They take all answers for right."""
    result, found = run.result, list[Accuracy]()
    seen = int(result.get("data", {}).get("held_out_seen", 0))
    new = f"examples like {int(run.held_out.sum()) - seen:,} held-out ones of {data}"
    old = f"examples like {seen:,} held-out ones of {data}; {SEEN} all of them"
    for name, population in (("estimated_accuracy", new), ("estimated_seen_accuracy", old)):
        keys = [f"{name}_{part}" for part in ("selected", "error", "low", "high")]
        if run.weights == "selected" and all(result.get(key) is not None for key in keys):
            value, error, low, high = (float(result[key]) for key in keys)
            title = OF_THIS_MODEL if run.errors_known else UNCORRECTED
            found.append(Accuracy(title, Estimated(value, error), population, bounds=(low, high)))
    return found


def _confidence(probabilities: Tensor, noise: AnswerNoise) -> Estimated:
    """The accuracy that a calibrated model expects, with the error of its temperature."""

    def mean(temperature: float) -> Tensor:
        return with_temperature(probabilities.double(), temperature).amax(1)

    best = mean(noise.temperature)
    change = float(mean(noise.temperature * math.exp(noise.temperature_error)).mean() - best.mean())
    return Estimated(float(best.mean()), math.hypot(change, float(best.std()) / math.sqrt(len(best))))


def _confusions(probabilities: Tensor, excluded: Tensor, matrix: Tensor, noise: AnswerNoise) -> Confusions:
    """The unbiased estimate where it is precise, else that of the calibrated model."""
    found = estimate_confusions(probabilities.argmax(1), excluded, matrix)
    if not math.isnan(float(found.error.max())) and float(found.error.max()) < PRECISE:
        return found
    posterior = torch.from_numpy(class_posterior(excluded, probabilities, noise))
    return model_confusions(probabilities.argmax(1), posterior)


def _by_class(
    run: FinishedRun, predicted: Tensor, excluded: Tensor, matrix: Tensor, test: Tensor | None, truth: Tensor | None
) -> list[ClassRow]:
    names = run.predictor.classes
    unknown = [Estimated(math.nan, math.nan)] * len(names)
    precision = estimate_confusions(predicted, excluded, matrix).precision() if len(predicted) else unknown
    share = estimate_prior(run.excluded, matrix)
    counts = torch.bincount(predicted, minlength=len(names)).tolist()
    recall: list[Any] = [None] * len(names)
    if test is not None and truth is not None:
        accuracy = scores.class_accuracy(test.argmax(1), truth, len(names)).tolist()
        recall = [None if math.isnan(value) else value for value in accuracy]
    given = run.excluded.sum(0).tolist()
    columns = zip(names, given, counts, precision, share, recall, strict=True)
    return [ClassRow(*row) for row in columns]


def _baselines(run: FinishedRun, noise: AnswerNoise, matrix_error: float | None, train: bool) -> list[Accuracy]:
    """The most common class for every example, and a linear layer on the raw inputs."""
    matrix = _matrix(run, noise)
    if matrix_error is None or bool(torch.isnan(class_estimates(run.excluded[:1], matrix)).any()):
        return []

    def compare(
        name: str, predicted: Tensor, rows: Tensor, on_test: Tensor | None, widened: float = 1.0
    ) -> list[Accuracy]:
        """The accuracy of a baseline on the examples of the run and on the test set, if there is one."""
        population = f"examples like all {len(rows):,} of the run"
        name_and_basis = f"{name}{_assumption(run, noise)}"
        excluded = run.excluded[rows]
        found = [_accuracy(run, predicted, excluded, noise, name_and_basis, population, matrix_error, widened)]
        return found + ([] if on_test is None or truth is None else [_counted(name, on_test, truth)])

    test = run.dataset.test
    truth = None if test is None else test.truth
    found = most_common_class(run.excluded, matrix, generator(run.config.seed, "baseline-halves"))
    names = " or ".join(run.predictor.classes[k] for k in found.unique().tolist())
    shares = [share.value for share in estimate_prior(run.excluded, matrix)]
    on_test = None if truth is None else torch.full_like(truth, shares.index(max(shares)))
    everyone = torch.arange(len(run.index))
    rows = compare(f"Always the most common class ({names})", found, everyone, on_test, HALVES_AGREE)
    return rows + (compare(*_linear(run, matrix)) if train else [])


def most_common_class(excluded: Tensor, transition: Tensor, source: torch.Generator) -> Tensor:
    """Predict the most common class for every example, int [N]: each half of them by the labels of the other half.

    The largest of several noisy shares is too large, if it is estimated from the labels that chose it.

    Args:
        excluded: Complementary labels, [N, K].
        transition: [K, K].
        source: Assigns the examples to the halves.
    """
    half = torch.randperm(len(excluded), generator=source) % 2
    predicted = torch.zeros(len(excluded), dtype=torch.long)
    for own, other in ((0, 1), (1, 0)):
        shares = [share.value for share in estimate_prior(excluded[half == other], transition)]
        predicted[half == own] = shares.index(max(shares))
    return predicted


def _linear(run: FinishedRun, matrix: Tensor) -> tuple[str, Tensor, Tensor, Tensor | None]:
    """A linear layer on the main components of the raw inputs, cross-fitted.

    Returns:
        Its name, its predictions int [R], the examples that they are for, int [R], and those for the test set, if it
        has true labels.
    """
    log.info("baseline: a linear layer on the raw inputs")
    source, test = generator(run.config.seed, "baseline"), run.dataset.test
    rows = torch.randperm(len(run.index), generator=source)[:MAX_EXAMPLES].sort().values
    truth = None if test is None else test.truth
    inputs = run.dataset.train.inputs[run.index[rows]].flatten(1).float()
    known = torch.zeros(0, inputs.shape[1]) if test is None or truth is None else test.inputs.flatten(1).float()
    points = reduce(torch.cat([inputs, known]))
    train, held = points[: len(rows)], points[len(rows) :]
    excluded = run.excluded[rows]
    part = torch.randperm(len(rows), generator=source) % AUTO_FOLDS
    fit = cross_fit_linear(train, excluded, matrix, part)
    on_test = None
    if truth is not None:
        weight, bias = fit_linear(train[:, : fit.components], excluded.float(), matrix.float(), fit.decay)
        on_test = (held[:, : fit.components] @ weight + bias).argmax(1)
    name = f"Linear layer on the {'pixels' if len(run.predictor.shape) == 3 else 'vectors'}"
    return name, fit.predicted.argmax(1), rows, on_test


def _counted(name: str, predicted: Tensor, truth: Tensor) -> Accuracy:
    right = (predicted == truth.cpu()).double()
    value = Estimated(float(right.mean()), float(right.std(unbiased=False)) / math.sqrt(len(right)))
    return Accuracy(name, value, f"{len(right):,} test examples with true labels", oracle=True)


def _uncertain(run: FinishedRun, judged: _Judged, top: int) -> list[Uncertain]:
    """The examples whose best class has the lowest probability, after calibration."""
    best = with_temperature(judged.probabilities.double(), judged.answers.noise.temperature).topk(2, dim=1)
    names, rows = run.predictor.classes, []
    for i in best.values[:, 0].argsort(stable=True)[:top].tolist():
        first, second = best.indices[i].tolist()
        high, low = best.values[i].tolist()
        rows.append(Uncertain(int(judged.rows[i]), (names[first], names[second]), (high, low)))
    return rows


# --- what is shown ----------------------------------------------------------------------------------------------------


def _names(run: FinishedRun) -> list[str] | None:
    names = run.dataset.train.names
    return None if names is None else [str(name) for name in names[run.index.numpy()]]


def _images(run: FinishedRun, rows: set[int]) -> dict[int, Tensor]:
    if len(run.predictor.shape) != 3:
        return {}
    return {row: run.dataset.train.inputs[run.index[row]] for row in sorted(rows)}


def _basis(run: FinishedRun, noise: AnswerNoise, held: Tensor) -> list[tuple[str, str]]:
    """What the model rests on; ``held``: probabilities of the held-out examples."""
    config, result = run.config, run.result
    summary = result.get("data", {})
    rows = [
        ("data", f"{config.dataset.data}: {len(run.index):,} examples, {int(run.held_out.sum()):,} of them held out"),
        ("answers", _describe_answers(run)),
        ("transition matrix", _describe_matrix(run)),
        ("wrong answers", _describe_errors(run, noise)),
        ("encoder", str(summary.get("encoder", "none; trained from the raw inputs"))),
        ("network", _describe_network(run)),
        ("recipe", _describe_recipe(config)),
        ("class prior", _describe_prior(result.get("class_prior"), run)),
        ("weights", f"{run.weights} epoch, seed {config.seed}"),
        ("trained", f"{result.get('train_seconds', 0):,.0f} s on {result.get('device', '?')}"),
    ]
    if (temperature := run.temperature(held)) is not None:
        basis = f"from the answers of {temperature.examples:,} held-out examples alone, as in an export"
        rows.append(("temperature", f"{temperature.text()}; {basis}"))
    if summary.get("uses_oracle"):
        rows.append(("oracle", "this run was trained with the help of true labels"))
    return rows


def _describe_errors(run: FinishedRun, noise: AnswerNoise) -> str:
    """The rates of wrong answers; those of "yes" answers if there are any."""
    if noise.is_unknown and run.errors_known:
        return f"{100 * float(run.transition.diagonal().mean()):.1f} % by the transition matrix"
    if noise.is_unknown:
        return "not estimated, because the model has seen the answers"
    no = f"{100 * noise.rate:.1f} ± {100 * noise.error:.1f} % (p = {noise.p_value:.2g})"
    if not math.isfinite(noise.yes_error) or noise.error == 0:
        return no
    return f"{no}; of “yes”: {100 * noise.yes_rate:.1f} ± {100 * noise.yes_error:.1f} % (p = {noise.yes_p_value:.2g})"


def _describe_answers(run: FinishedRun) -> str:
    """Their number, how many classes they exclude, and where they come from."""
    excluded, examples = int(run.excluded.sum()), max(1, len(run.excluded))
    source = label_source(run.config, run.dataset)
    if source != "given":
        return f"{excluded:,}, {excluded / examples:.2f} per example, drawn from the true labels: {source}"
    classes = f"{excluded / examples:.2f} excluded classes per example, as given with the data"
    given = run.dataset.answers
    return classes if given is None else f"{len(given.take(run.index)):,}, {classes}"


def _describe_matrix(run: FinishedRun) -> str:
    matrix, count = run.transition, len(run.predictor.classes)
    off = matrix[~torch.eye(count, dtype=torch.bool)]
    kind = (
        "every wrong class equally likely"
        if float(off.max() - off.min()) < 1e-6
        else (f"wrong classes excluded with probabilities from {float(off.min()):.3f} to {float(off.max()):.3f}")
    )
    return f"{run.config.training.transition}; {kind}"


def _describe_network(run: FinishedRun) -> str:
    encoder = run.predictor.encoder
    return run.predictor.network.kind if encoder is None else f"{run.predictor.network.kind} on frozen features"


def _describe_recipe(config: Config) -> str:
    t = config.training
    if t.fit == "neighbors":
        return f"{t.recipe}: a linear discriminant from the labels of neighbors"
    if t.fit == "discriminant":
        return f"{t.recipe}: loss {t.loss}, {t.epochs} epochs, then a linear discriminant"
    return f"{t.recipe}: loss {t.loss}, mixing {config.mixing.mix}, {t.epochs} epochs"


def _describe_prior(prior: list[float] | None, run: FinishedRun) -> str:
    if prior is None:
        return "estimated in each fit" if run.config.training.fit in CLOSED_FORM else "not used in training"
    low, high, option = min(prior), max(prior), run.config.pseudo_labels.prior
    source = "estimated" if option == "estimate" else "equal shares, as given" if option == "uniform" else "given"
    if math.isclose(low, high, rel_tol=1e-3):
        return "equal shares, which the labels do not contradict" if option == "estimate" else source
    names = run.predictor.classes
    return (
        f"{source}, from {100 * low:.1f} % ({names[prior.index(low)]}) to {100 * high:.1f} % "
        f"({names[prior.index(high)]})"
    )
