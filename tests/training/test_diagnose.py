"""The report of a run: planted errors are found, clean answers are not accused, estimates agree with the truth."""

import csv
import dataclasses
import io
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from complementary import labels, transitions
from complementary.config import Config
from complementary.data import import_dataset
from complementary.errors import UserError
from complementary.reports.answers import rank_answers, with_errors
from complementary.reports.confusions import Estimated, estimate_accuracy, estimate_prior
from complementary.reports.run_page import page
from complementary.reports.run_report import Accuracy, show
from complementary.scores import MISFIT
from complementary.training import diagnose as module
from complementary.training.diagnose import diagnose
from complementary.training.finished import open_run
from complementary.training.run import run
from tests.helpers import narrow_networks

K = 6


def write_data(path, rate, count=1800, seed=0):
    """Gaussian blobs with one answer each, of which a share ``rate`` excludes the true class -> (truth, not_y)."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, K, count + 600)
    inputs = rng.normal(size=(count + 600, 8)) + 3.0 * np.eye(K, 8)[truth]
    not_y = (truth[:count] + rng.integers(1, K, count)) % K
    wrong = rng.random(count) < rate
    not_y[wrong] = truth[:count][wrong]
    np.savez(
        path,
        inputs=inputs[:count],
        not_y=not_y,
        x_test=inputs[count:],
        y_test=truth[count:],
        classes=np.array([f"class {k}" for k in range(K)]),
    )
    return truth[:count], not_y


CONFIG = Config.of(mix="none", model="linear", epochs=25, batch=128, holdout=0.2, lr=0.01)


@pytest.mark.parametrize(
    ("weights", "options", "epochs"),
    [
        ("selected", {}, 7),
        ("last", {}, 25),
        ("selected", {"optimizer": "sgd"}, 25),
        ("selected", {"optimizer": "sgd", "fit": "neighbors"}, 7),
        ("selected", {"fit": "discriminant"}, 25),
        ("selected", {"self_training": 3}, 25),
        ("selected", {"recipe": "pocr"}, 25),
    ],
    ids=str,
)
def test_cross_fit_ends_at_the_selected_epoch_only_if_the_learning_rate_is_constant(weights, options, epochs):
    config = Config.of(**(CONFIG.flat() | options))
    run = SimpleNamespace(config=config, result={"selected_epoch": 7}, weights=weights)
    assert module._as_trained(run).training.epochs == epochs


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("noisy")
    truth, not_y = write_data(folder / "x.npz", 0.04)
    run(CONFIG.with_(data=str(folder / "x.npz")), folder / "run", device="cpu")
    return folder / "run", truth, not_y, diagnose(folder / "run", weights="last", folds=4, device="cpu", top=12)


def test_planted_wrong_answers_are_ranked_first(noisy):
    """Oracle: the list has the precision that it expects, and few errors of the answers are missed."""
    _, truth, not_y, report = noisy
    answers = report.answers
    wrong = not_y[answers.example] == truth[answers.example]
    assert (answers.answer == not_y[answers.example]).all()
    assert answers.noise.rate == pytest.approx((not_y == truth).mean(), abs=3 * answers.noise.error)
    precision, recall = wrong[answers.is_issue].mean(), wrong[answers.is_issue].sum() / wrong.sum()
    assert precision > 0.7
    assert precision == pytest.approx(answers.expected_precision, abs=0.15)
    assert recall > 0.6
    assert all(report.out_of_sample)


@pytest.mark.parametrize("folds", [0, 4], ids=["held-out", "cross-fit"])
def test_clean_answers_are_not_accused(tmp_path, folds):
    """Negative control."""
    write_data(tmp_path / "x.npz", 0.0)
    run(CONFIG.with_(data=str(tmp_path / "x.npz")), tmp_path / "run", device="cpu")
    report = diagnose(tmp_path / "run", folds=folds, device="cpu", baselines=False)
    assert report.issues <= 2
    assert report.answers.noise.rate < 0.012


def test_estimates_agree_with_true_labels(noisy):
    report = noisy[3]
    estimated, oracle = report.accuracies[0], report.accuracies[-1]
    assert (estimated.oracle, oracle.oracle) == (False, True)
    low, high = estimated.interval()
    assert low - 0.02 <= oracle.estimate.value <= high + 0.02
    confidence = next(a for a in report.accuracies if "confidence" in a.name)
    assert confidence.estimate.value == pytest.approx(oracle.estimate.value, abs=3 * confidence.estimate.error)
    assert confidence.estimate.error < estimated.estimate.error
    for row in report.by_class:
        assert row.precision.value == pytest.approx(row.oracle_accuracy, abs=4 * row.precision.error)
        assert row.share.value == pytest.approx(1 / K, abs=4 * row.share.error)
    assert [c.oracle for c in report.calibrations] == [False, True]
    assert report.confusions[-1].source == "oracle"


def test_errors_of_answers_are_part_of_the_estimate(noisy):
    """Without them, 4 % wrong answers would cost (K - 1) x 4 = 20 points."""
    report = noisy[3]
    plain = next(a for a in report.accuracies if "if no answer is wrong" in a.name)
    assert plain.estimate.value < report.accuracies[-1].estimate.value - 0.1
    assert report.accuracies[0].estimate.value > plain.estimate.value + 0.1


def test_interval_includes_the_case_that_no_answer_is_wrong(noisy):
    """Confident mistakes of the model cannot be told from wrong answers."""
    report = noisy[3]
    considered = [a for a in report.accuracies if "wrong answers considered" in a.name]
    plain = next(a for a in report.accuracies if "if no answer is wrong" in a.name)
    assert considered
    for found in considered:
        low, high = found.interval()
        assert low < plain.estimate.value < high


def test_wrong_answers_are_not_considered_if_the_labels_were_drawn(tmp_path):
    """Then the matrix is known. A tenth of the examples look like another class: confident mistakes."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, K, 2400)
    inputs = rng.normal(size=(2400, 8)) + 4.0 * np.eye(K, 8)[truth]
    moved = rng.random(2400) < 0.1
    inputs[moved] = np.roll(inputs[moved], 1, 1)
    np.savez(tmp_path / "x.npz", inputs=inputs, y=truth)
    run(CONFIG.with_(data=str(tmp_path / "x.npz"), labels="uniform"), tmp_path / "run", device="cpu")
    report = diagnose(tmp_path / "run", folds=4, device="cpu", baselines=False)
    assert report.answers.noise.p_value < 0.01, "the model does not fit"
    assert not any("considered" in a.name for a in report.accuracies)
    low, high = report.accuracies[0].interval()
    found = open_run(tmp_path / "run")
    right = found.probabilities(torch.arange(len(found.index))).argmax(1) == found.truth
    assert low < float(right.double().mean()) < high


def test_report_describes_the_class_prior(tmp_path):
    write_data(tmp_path / "x.npz", 0.0, 600)
    options = {"self_training": 1, "epochs": 2, "holdout": 0.1}
    cases = {
        "0.5,0.1,0.1,0.1,0.1,0.1": "given, from 10.0 % (class 1) to 50.0 % (class 0)",
        "uniform": "equal shares, as given",
    }
    for prior, wanted in cases.items():
        folder = tmp_path / prior
        run(CONFIG.with_(data=str(tmp_path / "x.npz"), prior=prior, **options), folder, device="cpu")
        report = diagnose(folder, folds=0, device="cpu", baselines=False)
        assert dict(report.basis)["class prior"] == wanted


def test_baselines_are_estimated_and_counted(noisy):
    report = noisy[3]
    always = [b for b in report.baselines if b.name.startswith("Always")]
    linear = [b for b in report.baselines if b.name.startswith("Linear")]
    assert [b.oracle for b in always] == [False, True]
    assert always[1].estimate.value == pytest.approx(1 / K, abs=0.06)
    assert always[1].estimate.value < linear[1].estimate.value
    assert linear[0].estimate.value == pytest.approx(linear[1].estimate.value, abs=4 * linear[0].estimate.error)
    assert always[0].estimate.value == pytest.approx(always[1].estimate.value, abs=4 * always[0].estimate.error)
    assert all(baseline.name.endswith("wrong answers considered") for baseline in (always[0], linear[0]))
    low, high = linear[0].interval()
    assert low < linear[1].estimate.value < high


def test_most_common_class_is_unbiased():
    """With classes of equal size it is right for one example in K, which the largest estimated share exceeds."""
    matrix, fitted, chosen, inside = transitions.uniform(K), [], [], []
    for seed in range(200):
        source = torch.Generator().manual_seed(seed)
        excluded = labels.draw(torch.randint(K, (600,), generator=source), matrix, seed=seed)
        predicted = module.most_common_class(excluded, matrix, source)
        value, error = estimate_accuracy(predicted, excluded, matrix)
        fitted.append(value)
        inside.append(abs(value - 1 / K) < 1.96 * module.HALVES_AGREE * error)
        chosen.append(max(share.value for share in estimate_prior(excluded, matrix)))
    error = np.std(fitted) / np.sqrt(200)
    assert np.mean(fitted) == pytest.approx(1 / K, abs=3 * error)
    assert error < 0.01
    assert np.mean(inside) >= 0.93
    assert np.mean(chosen) > 1 / K + 0.05, "negative control: chosen and estimated with the same labels"


def test_most_common_class_is_found():
    source = torch.Generator().manual_seed(0)
    truth = torch.where(torch.rand(1500, generator=source) < 0.5, 2, torch.randint(K, (1500,), generator=source))
    excluded = labels.draw(truth, transitions.uniform(K), seed=0)
    assert (module.most_common_class(excluded, transitions.uniform(K), source) == 2).all()


def simulated_run(excluded):
    """What `_accuracy` needs of a run: given answers, and a matrix that does not say how many are wrong."""
    return SimpleNamespace(transition=transitions.uniform(K), errors_known=False, excluded=excluded)


def test_error_of_the_rate_is_part_of_the_interval_of_a_baseline():
    """Simulated baselines of 70 % accuracy; the rate comes from a model with as many answers. Coverage of 95 %."""
    matrix, inside, without = with_errors(transitions.uniform(K), 0.05), [], []
    for seed in range(60):
        source = torch.Generator().manual_seed(seed)
        logits = 5 * torch.randn(1500, K, generator=source, dtype=torch.float64)
        truth = torch.multinomial(logits.softmax(1), 1, generator=source)[:, 0]
        excluded = labels.draw(truth, matrix, seed=seed)
        noise = rank_answers(excluded, logits.softmax(1)).noise
        right = torch.rand(1500, generator=source) < 0.7
        predicted = torch.where(right, truth, (truth + torch.randint(1, K, (1500,), generator=source)) % K)
        true, run_ = float(right.double().mean()), simulated_run(excluded)
        low, high = module._accuracy(run_, predicted, excluded, noise, "baseline", "all", 0.0).interval()
        inside.append(low <= true <= high)
        plain = estimate_accuracy(predicted, excluded, module._matrix(run_, noise))
        without.append(abs(plain.value - true) <= 1.96 * plain.error)
    assert np.mean(inside) >= 0.92
    assert np.mean(without) < np.mean(inside)


def test_estimate_clearly_outside_0_to_100_percent_is_refused():
    """As by `accuracy_estimate`. Answers that never exclude the prediction, but a tenth of them should be wrong."""
    truth = torch.randint(K, (4000,), generator=torch.Generator().manual_seed(0))
    excluded = labels.draw(truth, transitions.uniform(K), seed=0)
    noise = rank_answers(excluded, functional.one_hot(truth, K) * 0.9 + 0.1 / K, noise_rate=0.1).noise
    found = module._accuracy(simulated_run(excluded), truth, excluded, noise, "baseline", "all", 0.0)
    assert math.isnan(found.estimate.value)
    assert found.reason == MISFIT
    assert show(found) == f"not known. {MISFIT}"


def test_number_that_the_answers_refute_is_never_the_headline(noisy):
    report = noisy[3]
    plain = next(a for a in report.accuracies if "if no answer is wrong" in a.name)
    assert plain.refuted
    assert "wrong answers considered" in report.headline.name
    unknown = Accuracy("Estimated", Estimated(math.nan, math.nan), "all", reason=MISFIT)
    without = dataclasses.replace(report, accuracies=[unknown, plain])
    assert without.headline is None
    assert "The accuracy is not known." in page(without)
    assert MISFIT in page(without)


def test_numbers_that_take_all_answers_for_right_say_so(tmp_path):
    """Without evidence for wrong answers. The note of the run says the same, and that the report checks it."""
    write_data(tmp_path / "x.npz", 0.0, 900)
    result = run(CONFIG.with_(data=str(tmp_path / "x.npz")), tmp_path / "run", device="cpu")
    assert any("if no answer is wrong" in note and "cll report" in note for note in result["estimate_notes"])
    report = diagnose(tmp_path / "run", folds=0, device="cpu")
    assert not report.answers.noise.is_significant
    for found in (report.headline, *(b for b in report.baselines if not b.oracle)):
        assert found.name.endswith("if no answer is wrong")
    assert sum("do not show that some are wrong" in note for note in report.notes) == 1


def test_csv_lists_the_issues_for_the_annotators(noisy):
    report = noisy[3]
    rows = list(csv.DictReader(io.StringIO(report.answers_csv())))
    assert len(rows) == max(50, report.issues)
    assert sum(row["looks_wrong"] == "yes" for row in rows) == report.issues
    first = rows[0]
    assert first["answer"] == f"not class {report.answers.answer[0]}"
    assert first["example"] == str(report.answers.example[0])
    assert float(first["probability_wrong"]) >= float(rows[-1]["probability_wrong"])
    assert len(report.answers_csv(limit=3).splitlines()) == 4


def test_text_summary_names_the_main_figures(noisy):
    text = noisy[3].text()
    for part in ("Estimated accuracy", "95 % interval", "(oracle)", "Always the most common class", "look wrong"):
        assert part in text


def test_uncertain_examples_are_those_with_the_smallest_margin(noisy):
    report = noisy[3]
    assert len(report.uncertain) == 200
    best = [row.probabilities[0] for row in report.uncertain]
    assert best == sorted(best)
    assert best[0] < 0.6
    assert all(row.classes[0] != row.classes[1] for row in report.uncertain)


def test_open_run_knows_the_validation_split(noisy):
    found = open_run(noisy[0], device="cpu")
    assert int(found.held_out.sum()) == found.result["data"]["held_out"] == 360
    assert torch.equal(found.excluded.argmax(1), torch.from_numpy(noisy[2]))
    assert 0.2 < found.temperature().value < 5


def test_temperature_agrees_with_true_labels_although_answers_are_wrong(noisy):
    """Oracle: the temperature of least cross-entropy on the test set. The report says which direction it means."""
    found = open_run(noisy[0], "last", device="cpu")
    temperature, test = found.temperature(), found.dataset.test
    logs = found.test_probabilities().double().clamp_min(1e-12).log()
    each = {x / 20: float(functional.cross_entropy(logs / (x / 20), test.truth.long())) for x in range(4, 80)}
    assert temperature.low <= min(each, key=each.get) <= temperature.high
    assert temperature.rate == pytest.approx(0.04, abs=0.03)
    assert not temperature.rate_known
    assert dict(noisy[3].basis)["temperature"].startswith(temperature.text())


def test_report_without_held_out_examples_and_truth(tmp_path):
    write_data(tmp_path / "y.npz", 0.03, 400)
    with np.load(tmp_path / "y.npz") as content:
        np.savez(tmp_path / "x.npz", inputs=content["inputs"], not_y=content["not_y"])
    run(CONFIG.with_(data=str(tmp_path / "x.npz"), holdout=0.0, epochs=5), tmp_path / "run", device="cpu")
    report = diagnose(tmp_path / "run", folds=0, device="cpu")
    assert report.accuracies == []
    assert [b.oracle for b in report.baselines] == [False, False]
    assert len(report.answers.example) == 400
    assert not any(report.out_of_sample)
    assert report.answers.noise.is_unknown, "the model has seen the answers, so its predictions show no rate"
    assert report.issues == 0
    assert all(b.name.endswith("if no answer is wrong") for b in report.baselines)
    assert dict(report.basis)["wrong answers"] == "not estimated, because the model has seen the answers"
    assert "was not estimated, because the model has seen them" in report.text()
    assert {row["probability_wrong"] for row in csv.DictReader(io.StringIO(report.answers_csv()))} == {""}
    assert sum("No estimated accuracy: no examples are held out" in note for note in report.notes) == 1
    assert all(math.isnan(row.precision.value) for row in report.by_class)


def test_report_with_few_held_out_answers_has_the_known_rate_and_no_number(tmp_path):
    options = {"labels": "noisy:0.05", "holdout": 0.05, "mix": "none", "epochs": 1, "model": "linear"}
    run(Config.of(**options), tmp_path / "run", device="cpu")
    report = diagnose(tmp_path / "run", folds=0, device="cpu")
    assert dict(report.basis)["wrong answers"] == "5.0 % by the transition matrix"
    assert report.headline is None or not report.headline.name.startswith("Estimated")
    assert any("too few answers" in row.reason or "too few labels" in row.reason for row in report.accuracies)


@pytest.mark.slow
def test_report_names_the_images_that_the_encoder_has_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path))
    narrow_networks(monkeypatch)
    options = {"inputs": "features", "encoder": "simsiam", "pretrain_epochs": 1, "pretrain_images": "training"}
    first = Config.of(mix="none", epochs=1, holdout=0.5, per_example=3, **options)
    run(first, tmp_path / "first", device="cpu")
    run(first.with_(encoder=f"run:{tmp_path / 'first'}", seed=1), tmp_path / "second", device="cpu")
    found = diagnose(tmp_path / "second", weights="selected", folds=0, baselines=False, device="cpu").accuracies
    populations = [a.population for a in found]
    assert "encoder" not in populations[0], "the number for new images comes first"
    assert any("the encoder was pretrained on" in p for p in populations)


def test_data_that_changed_are_refused(tmp_path):
    write_data(tmp_path / "x.npz", 0.03, 400)
    run(CONFIG.with_(data=str(tmp_path / "x.npz"), epochs=2), tmp_path / "run", device="cpu")
    write_data(tmp_path / "x.npz", 0.03, 300)
    with pytest.raises(UserError, match="320"):
        diagnose(tmp_path / "run")
    (tmp_path / "x.npz").unlink()
    with pytest.raises(UserError, match=r"x\.npz"):
        diagnose(tmp_path / "run")


def test_training_answers_are_not_judged_if_there_are_too_many(noisy, monkeypatch):
    monkeypatch.setattr(module, "MAX_IN_SAMPLE", 100)
    report = diagnose(noisy[0], weights="last", folds=0, device="cpu", baselines=False)
    assert len(report.answers.example) == 360
    assert all(report.out_of_sample)
    held = open_run(noisy[0], device="cpu").held_out
    assert held[torch.from_numpy(report.answers.example)].all()
    assert all(held[row.example] for row in report.uncertain)
    monkeypatch.undo()
    everyone = diagnose(noisy[0], weights="last", folds=0, device="cpu", baselines=False)
    assert len(everyone.answers.example) == 1800
    assert sum(everyone.out_of_sample) == 360
    assert everyone.answers.noise.rate == report.answers.noise.rate
    assert (everyone.answers.answer == noisy[2][everyone.answers.example]).all()


def test_annotators_and_names_come_with_the_data(tmp_path, monkeypatch):
    """Joe is wrong three times in ten; he leads the table, and the CSV names files and annotators."""
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    truth, not_y = write_data(tmp_path / "x.npz", 0.0)
    rng = np.random.default_rng(1)
    who = np.array(["ann", "bob", "joe"])[rng.integers(0, 3, len(truth))]
    careless = (who == "joe") & (rng.random(len(truth)) < 0.3)
    not_y[careless] = truth[careless]
    with np.load(tmp_path / "x.npz") as content:
        np.save(tmp_path / "vectors.npy", content["inputs"])
    rows = [f"{i},not class {k},{name}" for i, (k, name) in enumerate(zip(not_y, who, strict=True))]
    rows += [f"0,yes class {(truth[0] + 1) % K},joe"]  # a wrong answer that excludes the other classes
    (tmp_path / "answers.csv").write_text("\n".join(["id,answer,annotator", *rows]) + "\n")
    import_dataset(tmp_path / "vectors.npy", "blobs", tmp_path / "answers.csv")
    run(CONFIG.with_(data="blobs"), tmp_path / "run", device="cpu")
    report = diagnose(tmp_path / "run", folds=3, device="cpu", baselines=False)
    (name, answers, rate), *others = report.annotators
    assert (name, answers) == ("joe", int((who == "joe").sum()) + 1)
    assert rate.value == pytest.approx(0.3, abs=4 * rate.error)
    assert all(other[2].value < 0.1 for other in others)
    first = next(csv.DictReader(io.StringIO(report.answers_csv())))
    assert first["annotator"] == "joe"
    assert careless[int(first["example"])] or first["example"] == "0"
    yes = [row for row in csv.DictReader(io.StringIO(report.answers_csv(len(rows)))) if row["answer"].startswith("yes")]
    assert [(row["example"], row["annotator"]) for row in yes] == [("0", "joe")], "listed once"


def test_estimated_matrix_without_held_out_examples_gives_no_estimates(tmp_path):
    """Its error is not known then, so nothing that rests on its inverse is shown."""
    options = {"labels": "biased:5", "transition": "estimate", "loss": "fwd", "mix": "none", "holdout": 0.0}
    run(Config.of(epochs=2, estimate_epochs=2, **options), tmp_path / "run", device="cpu")
    report = diagnose(tmp_path / "run", folds=2)
    names = [accuracy.name for accuracy in report.accuracies]
    assert not any(name.startswith("Estimated") for name in names)
    assert report.baselines == []
    assert any("its error is not known" in note for note in report.notes)
    assert "its error is not known" in page(report, "answers.csv", "uncertain.csv", 5)


def test_time_of_a_cross_fit_includes_the_trainings_that_come_first(monkeypatch):
    monkeypatch.setattr(module, "device_name", lambda _: "this device")
    notes = []

    def folds(**result):
        finished = SimpleNamespace(device="cpu", held_out=torch.ones(3), result={"device": "this device"} | result)
        return module._folds(finished, None, notes)

    assert folds(train_seconds=30.0, seconds_before=0.0) == 5
    assert folds(train_seconds=30.0, seconds_before=60.0) == 0
    assert "(about 8 minutes)" in notes[-1]
    assert folds(train_seconds=30.0) == 0, "the result does not say what came first"
    assert "(a while)" in notes[-1]


@pytest.mark.slow
def test_result_has_the_seconds_of_the_trainings_that_come_first(tmp_path):
    options = {"data": "digits", "mix": "none", "epochs": 1, "batch": 256}
    assert run(Config.of(**options))["seconds_before"] < 1
    estimated = Config.of(**options, transition="estimate", loss="fwd", labels="biased:3", estimate_epochs=5)
    result = run(estimated)
    assert result["seconds_before"] > 2 * result["train_seconds"]
