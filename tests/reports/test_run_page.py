"""The HTML page of a run: self-contained, escaped, complete."""

import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from complementary.reports.answers import rank_answers
from complementary.reports.calibration import calibration
from complementary.reports.confusions import Estimated, estimate_confusions, oracle_confusions
from complementary.reports.run_page import data_url, page
from complementary.reports.run_report import Accuracy, ClassRow, RunReport, Uncertain, show
from complementary.transitions import uniform

NAMES = ("a <b>", "dog & cat", "ship")
VOID = {"meta", "img", "br"}


class Checker(HTMLParser):
    """Collects tags, links and text, and checks that every tag is closed."""

    def __init__(self):
        super().__init__()
        self.stack, self.seen, self.links, self.text = [], [], [], ""

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text += data


def check(text):
    checker = Checker()
    checker.feed(text)
    assert checker.stack == []
    return checker


@pytest.fixture
def report():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 300)
    not_y = (truth + rng.integers(1, 3, 300)) % 3
    not_y[:9] = truth[:9]
    probabilities = np.full((300, 3), 0.05)
    probabilities[np.arange(300), truth] = 0.9
    excluded = torch.nn.functional.one_hot(torch.from_numpy(not_y), 3)
    p, t = torch.from_numpy(probabilities), torch.from_numpy(truth)
    answers = rank_answers(not_y, probabilities)
    return RunReport(
        title="Report of <x>",
        classes=NAMES,
        accuracies=[Accuracy("Estimated accuracy", Estimated(0.8, 0.05), "examples like these")],
        baselines=[
            Accuracy("Always ship", Estimated(0.3, 0.1), "the same"),
            Accuracy("T", Estimated(1.2, 0.1), "x", True),
        ],
        by_class=[ClassRow(name, 100, 90, Estimated(0.9, 0.1), Estimated(0.3, 0.02), 0.8) for name in NAMES],
        calibrations=[calibration(p, excluded, uniform(3)), calibration(p, truth=t)],
        confusions=[estimate_confusions(p.argmax(1), excluded, uniform(3)), oracle_confusions(p.argmax(1), t, 3)],
        answers=answers,
        out_of_sample=[True] * 299 + [False],
        uncertain=[Uncertain(4, (NAMES[0], NAMES[1]), (0.4, 0.35))],
        annotators=[("ann <1>", 40, Estimated(0.1, 0.05))],
        basis=[("encoder", "simsiam")],
        notes=["A note & more."],
        names=[f"photos/<{i}>.jpg" for i in range(300)],
        images={int(i): torch.zeros(3, 8, 8, dtype=torch.uint8) for i in (*answers.example[:5], 4)},
    )


def test_page_is_self_contained_and_well_formed(report):
    found = check(page(report, "answers.csv", top=6))
    assert {link for link in found.links if not link.startswith("data:image/png;base64,")} == {"answers.csv"}
    assert "script" not in found.seen
    assert found.seen.count("svg") == 2
    text = page(report, None)
    assert "width=device-width" in text
    assert check(text).links.count("answers.csv") == 0


def test_page_escapes_names(report):
    text = page(report)
    assert "a <b></" not in text
    assert "<x>" not in text
    seen = check(text).text
    for part in (*NAMES, "Report of <x>", "photos/<0>.jpg", "ann <1>", "A note & more."):
        assert part in seen


def test_page_shows_every_section(report):
    seen = check(page(report)).text
    for title in ("Wrong answers", "Classes", "Confusions", "Calibration", "Most uncertain", "Annotators", "rests on"):
        assert title in seen
    assert "oracle" in seen
    assert "70 to 90 %" in seen  # 0.8 ± 1.96 x 0.05


def test_page_of_an_empty_report_is_valid():
    empty = RunReport("x", NAMES, [], [], [], [], [], None, [], [])
    found = check(page(empty))
    assert "not known" in found.text
    assert "Classes" not in found.text
    assert empty.text().startswith("x\n")
    assert empty.answers_csv().count("\n") == 1


def test_unknown_estimates_are_shown_as_unknown(report):
    unknown = Accuracy("x", Estimated(math.nan, math.nan), "y")
    assert show(unknown) == "not known"
    assert "nan" not in re.sub('data:[^"]*', "", page(report))


@pytest.mark.parametrize(
    ("value", "error", "bounds", "shown"),
    [
        (1.3, 0.05, None, "100.0 %, 95 % interval 90 to 100 %"),  # not 100 to 100
        (-0.4, 0.05, None, "0.0 %, 95 % interval 0 to 10 %"),
        (0.994, 0.1, (0.77, 0.9944), "99.4 %, 95 % interval 77 to 100 %"),
        (0.57, 0.1, (0.57, 0.58), "57.0 %, 95 % interval 57 to 58 %"),
    ],
)
def test_accuracy_is_shown_within_its_interval(value, error, bounds, shown):
    accuracy = Accuracy("x", Estimated(value, error), "y", bounds=bounds)
    low, high = accuracy.interval()
    assert 0 <= low <= accuracy.value <= high <= 1
    assert show(accuracy) == shown


def test_data_url_is_a_png_of_the_image():
    import base64
    import io

    from PIL import Image

    image = torch.arange(3 * 4 * 5, dtype=torch.uint8).reshape(3, 4, 5)
    content = base64.b64decode(data_url(image).partition(",")[2])
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(content))), image.permute(1, 2, 0).numpy())
    gray = base64.b64decode(data_url(image[:1]).partition(",")[2])
    assert np.asarray(Image.open(io.BytesIO(gray))).shape == (4, 5)
