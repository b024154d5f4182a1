"""The content of the report of a run, and its summary as text. `run_page` makes an HTML page of it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from complementary.reports.answers import RankedAnswers
from complementary.reports.calibration import Calibration
from complementary.reports.confusions import Confusions, Estimated
from complementary.reports.tables import csv, interval_text, percent_with_error

INTERVAL = 1.96  # standard errors on each side: a 95 % interval
SHOWN = 5  # rows of each kind in the text summary


@dataclass(frozen=True)
class Accuracy:
    """One figure for how good the model, or a baseline, is.

    Attributes:
        name: What it is.
        estimate: Value and standard error.
        population: Which examples it holds for.
        oracle: Whether true labels were used.
        bounds: The 95 % interval; None: 1.96 standard errors on each side.
        reason: Why there is no number; empty if there is one.
        refuted: Whether it assumes that no answer is wrong, and the answers show that some are.
    """

    name: str
    estimate: Estimated
    population: str
    oracle: bool = False
    bounds: tuple[float, float] | None = None
    reason: str = ""
    refuted: bool = False

    def interval(self) -> tuple[float, float]:
        """The 95 % interval, cut to 0 .. 1. It contains the cut value, even if the estimate is far outside."""
        if self.bounds is not None:
            return self.bounds
        low, high = (self.value + sign * INTERVAL * self.estimate.error for sign in (-1, 1))
        return max(0.0, low), min(1.0, high)

    @property
    def value(self) -> float:
        """The estimate, which is unbiased and may lie outside 0 .. 1, cut to these."""
        return max(0.0, min(1.0, self.estimate.value))

    def interval_text(self) -> str:
        """The interval as text, see `tables.interval_text`."""
        return interval_text(*self.interval())


@dataclass(frozen=True)
class ClassRow:
    """What is known about one class.

    Attributes:
        name: Name of the class.
        excluded: Number of answers that exclude it.
        predicted: Number of held-out examples that are predicted to belong to it.
        precision: How many of these predictions are right, estimated from complementary labels.
        share: Estimated share of the class among the examples.
        oracle_accuracy: Share of its test examples that are recognized (recall); None without true labels.
    """

    name: str
    excluded: int
    predicted: int
    precision: Estimated
    share: Estimated
    oracle_accuracy: float | None = None


@dataclass(frozen=True)
class Uncertain:
    """An example whose class is not clear: its position, and the two most likely classes with their probabilities."""

    example: int
    classes: tuple[str, str]
    probabilities: tuple[float, float]


@dataclass(frozen=True)
class Suspicious:
    """A line of the list of suspicious answers.

    Attributes:
        place: Position in the ranking.
        example: Position of the example.
        excluded: Name of the class that is excluded and looks right.
        text: The answer in words, such as "not cat" or "yes dog".
        annotator: Who gave it, or "".
    """

    place: int
    example: int
    excluded: str
    text: str
    annotator: str


@dataclass(frozen=True)
class RunReport:
    """Everything that the report of a run says. Estimates need no true labels; what does is marked oracle.

    Attributes:
        title: The title.
        classes: Names of the classes.
        accuracies: How good the model is; the first one is the headline.
        baselines: The same for simple models, on the same examples.
        by_class: A row per class.
        calibrations: Confidence against accuracy, estimated and, with a test set, oracle.
        confusions: Confused classes, estimated and, with a test set, oracle.
        answers: All answers of the examples, the most suspicious one first.
        out_of_sample: Whether the prediction behind each ranked answer came from a model that had not seen it, [M].
        uncertain: The most uncertain examples, the least certain one first.
        annotators: Rows of annotator, number of answers, estimated error rate; empty if they are not named.
        basis: What the model rests on: pairs of name and value.
        notes: Sentences about what was not possible, or holds with a reservation.
        names: Name of each example, such as its file; None: its number.
        images: The images of the examples that are shown, by position: uint8 [C, H, W].
        annotator_of: Who gave a suspicious answer, by example and excluded class.
        given_as: The words of an answer such as "yes cat" that excludes several classes, by example and excluded class.
    """

    title: str
    classes: tuple[str, ...]
    accuracies: list[Accuracy]
    baselines: list[Accuracy]
    by_class: list[ClassRow]
    calibrations: list[Calibration]
    confusions: list[Confusions]
    answers: RankedAnswers | None
    out_of_sample: list[bool]
    uncertain: list[Uncertain]
    annotators: list[tuple[str, int, Estimated]] = field(default_factory=list)
    basis: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    names: list[str] | None = None
    images: dict[int, Tensor] = field(default_factory=dict)
    annotator_of: dict[tuple[int, int], str] = field(default_factory=dict)
    given_as: dict[tuple[int, int], str] = field(default_factory=dict)

    def name_of(self, example: int) -> str:
        """How the example is called in tables."""
        return f"example {example}" if self.names is None else self.names[example]

    @property
    def headline(self) -> Accuracy | None:
        """The first accuracy that is known and that the answers do not refute; None: there is none."""
        usable = (a for a in self.accuracies if not a.refuted and not math.isnan(a.estimate.value))
        return next(usable, None)

    @property
    def issues(self) -> int:
        """Number of answers that look wrong."""
        return 0 if self.answers is None else int(self.answers.is_issue.sum())

    def ranked(self, limit: int) -> Iterator["Suspicious"]:
        """The first answers of the ranking; one that excludes several classes, such as "yes cat", comes once."""
        answers, listed = self.answers, set[tuple[int, str]]()
        for place in range(0 if answers is None else len(answers.example)):
            assert answers is not None
            if len(listed) >= limit:
                return
            example, answer = int(answers.example[place]), int(answers.answer[place])
            text = self.given_as.get((example, answer), f"not {self.classes[answer]}")
            if (example, text) not in listed:
                listed.add((example, text))
                who = self.annotator_of.get((example, answer), "")
                yield Suspicious(place, example, self.classes[answer], text, who)

    def answers_csv(self, limit: int | None = None) -> str:
        """Suspicious answers as CSV, to send back to the annotators.

        Args:
            limit: Number of rows at most; None: the issues, but at least 50 answers.
        """
        header = ["rank", "example", "answer", "model_says", "excluded_class_probability", "probability_wrong"]
        header += ["looks_wrong", "annotator", "basis"]
        rows: list[list[Any]] = []
        for found in self.ranked(max(self.issues, 50) if limit is None else limit):
            assert self.answers is not None
            ranked, place = self.answers, found.place
            rows.append(
                [
                    len(rows) + 1,
                    str(found.example) if self.names is None else self.names[found.example],
                    found.text,
                    self.classes[int(ranked.predicted[place])],
                    f"{ranked.probability[place]:.3f}",
                    "" if ranked.noise.is_unknown else f"{1 - ranked.quality[place]:.3f}",
                    "yes" if ranked.is_issue[place] else "no",
                    found.annotator,
                    "out of sample" if self.out_of_sample[place] else "in sample",
                ]
            )
        return csv(header, rows)

    def uncertain_csv(self) -> str:
        """The examples for which one more answer would help most as CSV, to ask annotators about."""
        header = ["rank", "example", "model_says", "probability", "second_class", "second_probability"]
        rows: list[list[Any]] = []
        for row in self.uncertain:
            example = str(row.example) if self.names is None else self.names[row.example]
            pairs = [
                cell for name, p in zip(row.classes, row.probabilities, strict=True) for cell in (name, f"{p:.3f}")
            ]
            rows.append([len(rows) + 1, example, *pairs])
        return csv(header, rows)

    def text(self) -> str:
        """The summary for a terminal."""
        lines = [self.title, ""]
        lines += [f"{a.name}: {show(a)} ({a.population})" for a in (*self.accuracies, *self.baselines)]
        lines += ["", *self._classes_text(), *self._answers_text()]
        if self.notes:
            lines += ["", *self.notes]
        return "\n".join(lines) + "\n"

    def _classes_text(self) -> list[str]:
        known = [row for row in self.by_class if not math.isnan(row.precision.value) and row.predicted]
        worst = sorted(known, key=lambda row: row.precision.value)[:SHOWN]
        lines = [f"Least reliable predictions: {', '.join(f'{r.name} {percent(r.precision)}' for r in worst)}"]
        if self.confusions and (pairs := self.confusions[-1].worst(SHOWN)):
            shown = ", ".join(f"{self.classes[i]} as {self.classes[j]} {100 * e.value:.1f}" for i, j, e in pairs)
            oracle = _oracle(self.confusions[-1].source == "oracle")
            lines.append(f"Most confused, in percent of all examples{oracle}: {shown}")
        if self.calibrations:
            c = self.calibrations[0]
            found = f"mean confidence {100 * c.confidence:.0f} %, accuracy {percent(c.accuracy)}"
            lines.append(f"Calibration{c.assumption}: {found}")
        return lines

    def _answers_text(self) -> list[str]:
        if self.answers is None:
            return []
        lines = [f"Answers: {describe_noise(self.answers, self.issues)}"]
        if self.annotators:
            worst = ", ".join(f"{name} {percent(rate)}" for name, _, rate in self.annotators[:SHOWN])
            lines.append(f"Annotators, estimated share of wrong answers: {worst}")
        return lines


def describe_noise(answers: RankedAnswers, issues: int) -> str:
    """One sentence about wrong answers."""
    noise, count, yes = answers.noise, len(answers.example), int(answers.is_yes.sum())
    if noise.is_unknown:
        return (
            f"whether some of {count:,} are wrong was not estimated, because the model has seen them; the most "
            "suspicious ones come first, but errors that the model has learned are not among them"
        )
    if not noise.is_significant:
        return (
            f"there is no significant sign of wrong ones among {count:,} "
            f"(p = {min(noise.p_value, noise.yes_p_value):.2g}), which may also mean that the model is too weak to "
            "tell; the most suspicious ones come first"
        )
    if noise.error == 0:  # the transition matrix says so
        rate = f"{100 * noise.rate:.1f} % of {count:,} are wrong, by the transition matrix"
    elif not yes:
        rate = f"an estimated {percent_with_error(noise.rate, noise.error)} of {count:,} are wrong"
    else:
        kinds = [(noise.rate, noise.error, count - yes, "not"), (noise.yes_rate, noise.yes_error, yes, "yes")]
        shown = [f"{percent_with_error(r, e)} of {n:,} “{word}” answers" for r, e, n, word in kinds if n]
        rate = f"an estimated {' and '.join(shown)} are wrong"
    if issues == 0:
        return f"{rate}; no single one is clearly wrong"
    precision = f"{100 * answers.expected_precision:.0f} %"
    return f"{rate}; {issues:,} look wrong (expected precision of this list: {precision})"


def show(accuracy: Accuracy) -> str:
    """``64.2 %, 95 % interval 55 to 73 %``, with the word oracle where it applies."""
    if math.isnan(accuracy.estimate.value):
        return f"not known. {accuracy.reason}".rstrip(" .") + ("." if accuracy.reason else "")
    return f"{100 * accuracy.value:.1f} %{_oracle(accuracy.oracle)}, 95 % interval {accuracy.interval_text()}"


def percent(estimate: Estimated) -> str:
    """``64 ± 3 %``."""
    if math.isnan(estimate.value):
        return "not known"
    value = max(0.0, min(1.0, estimate.value))  # an unbiased estimate may lie outside
    return f"{100 * value:.0f} ± {max(1, math.ceil(100 * estimate.error)):.0f} %"


def _oracle(oracle: bool) -> str:
    return " (oracle)" if oracle else ""
