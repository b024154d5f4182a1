import logging
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from complementary import ComplementaryClassifier, data, labels, scores, transitions
from complementary.errors import UserError
from complementary.training import run
from tests.helpers import narrow_networks

IMAGES, VECTORS = np.zeros((40, 8, 8), np.uint8), np.zeros((40, 2))
NOT_Y = np.arange(40) % 3
INHERENT = {
    "check_fit_score_takes_y": "the second parameter of fit is not_y: naming it y would hide that it means 'not'",
    "check_classifiers_one_label": "labels that all exclude one class leave the other classes, not this one",
}


@pytest.fixture(scope="module")
def digits():
    source = load_digits()
    excluded = labels.draw(torch.from_numpy(source.target).long(), transitions.uniform(10), 3, seed=0)
    return source.images.astype(np.uint8) * 15, source.data, source.target, excluded.numpy()


@pytest.fixture(scope="module")
def fitted(digits):
    _, vectors, _, excluded = digits
    return ComplementaryClassifier(mix="none", epochs=5, batch=128).fit(vectors, excluded)


# --- fit and predict ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form", ["matrix", *(pytest.param(form, marks=pytest.mark.slow) for form in ("sets", "vector"))]
)
def test_fit_accepts_every_form_of_labels(digits, form):
    _, vectors, truth, excluded = digits
    forms = {
        "matrix": excluded,
        "sets": [set(np.flatnonzero(row).tolist()) for row in excluded],
        "vector": labels.draw(torch.from_numpy(truth), transitions.uniform(10), seed=1).argmax(1).numpy(),
    }
    model = ComplementaryClassifier(mix="icm", clusters=30, epochs=40, batch=128).fit(vectors[300:], forms[form][300:])
    assert model.score(vectors[:300], truth[:300]) > (0.75 if form != "vector" else 0.5)
    assert model.predict_proba(vectors[:5]).sum(1) == pytest.approx(np.ones(5), abs=1e-5)


def test_fit_with_names_predicts_names(digits):
    _, vectors, truth, excluded = digits
    names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
    model = ComplementaryClassifier(mix="none", epochs=20, batch=128)
    named = clone(model).fit(vectors, [set(names[row == 1]) for row in excluded])
    assert named.classes_.tolist() == sorted(names)
    assert named.score(vectors, names[truth]) > 0.75
    assert named.estimated_accuracy(vectors, [list(names[row == 1]) for row in excluded]) > 0.75
    assert named.predictor_.classes == tuple(sorted(names))
    ordered = clone(model).fit(vectors, [set(names[row == 1]) for row in excluded], classes=list(names))
    numbered = clone(model).fit(vectors, excluded)
    assert ordered.classes_.tolist() == names.tolist()
    assert np.array_equal(ordered.predict_proba(vectors), numbered.predict_proba(vectors))
    assert np.array_equal(ordered.predict(vectors), names[numbered.predict(vectors)])
    with pytest.raises(UserError, match="their names"):
        named.score(vectors, truth)


@pytest.mark.slow
def test_fit_accepts_images(digits):
    images, _, truth, excluded = digits
    model = ComplementaryClassifier(epochs=30, batch=128).fit(images[300:], excluded[300:])
    assert model.score(images[:300], truth[:300]) > 0.7
    assert model.n_features_in_ == 64


def test_fit_sets_the_documented_attributes(fitted):
    assert fitted.classes_.tolist() == list(range(10))
    assert fitted.n_features_in_ == 64
    assert [row["epoch"] for row in fitted.history_] == [1, 2, 3, 4, 5]
    assert {"loss", "scel"} <= fitted.history_[0].keys()
    assert fitted.transition_ == pytest.approx(transitions.uniform(10).numpy())
    assert fitted.predictor_.shape == (64,)


def test_predictions_come_from_the_selected_epoch(digits):
    _, vectors, _, excluded = digits
    options = {"mix": "none", "batch": 128, "lr": 0.05, "holdout": 0.5}  # a high rate: the network breaks down later
    model = ComplementaryClassifier(epochs=6, **options).fit(vectors, excluded)
    selected = model.history_[-1]["selected"]
    assert selected < 6
    stopped = ComplementaryClassifier(epochs=selected, **options).fit(vectors, excluded)
    assert np.array_equal(model.predict_proba(vectors), stopped.predict_proba(vectors))


def test_same_seed_gives_the_same_classifier(digits):
    _, vectors, _, excluded = digits
    a, b = (ComplementaryClassifier(epochs=2, clusters=10).fit(vectors, excluded).predict_proba(vectors) for _ in "ab")
    assert (a == b).all()


def test_auto_batch_and_clusters_shrink_with_the_data(digits, monkeypatch):
    seen = []

    def build_trainer(config, *rest, **options):
        seen.append((config.training.batch, config.cluster.clusters))
        return run.build_trainer(config, *rest, **options)

    monkeypatch.setattr("complementary.estimator.build_trainer", build_trainer)
    _, vectors, _, excluded = digits
    ComplementaryClassifier(epochs=1).fit(vectors[:40], excluded[:40])
    ComplementaryClassifier(epochs=1, batch=8, clusters=3).fit(vectors[:40], excluded[:40])
    assert seen == [(10, 4), (8, 3)]


def test_column_vector_of_labels_is_flattened_with_a_warning(digits):
    _, vectors, truth, _ = digits
    not_y = (truth[:100, None] + 1) % 10
    with pytest.warns(UserWarning, match="column-vector"):
        ComplementaryClassifier(mix="none", epochs=1).fit(vectors[:100], not_y)


def test_class_that_no_label_excludes_gives_a_warning(digits, caplog):
    _, vectors, truth, _ = digits
    ComplementaryClassifier(mix="none", epochs=1).fit(vectors[:100], (truth[:100] + 1) % 10 + 1)
    assert "start at 1" in caplog.text
    assert "0 (0)" in caplog.text


@pytest.mark.parametrize("recipe", ["custom", "auto"])
def test_few_labels_give_one_warning(digits, caplog, recipe):
    vectors = digits[1]
    model = ComplementaryClassifier(recipe=recipe, mix="none", epochs=1, config={"self_training": 0})
    for count, expected in ((3, 1), (45, 0)):
        caplog.clear()
        model.fit(vectors[:count], np.arange(count) % 3, classes=3)
        assert sum("labels for training with 3 classes" in message for message in caplog.messages) == expected


def test_labels_that_are_years_are_refused_before_training_unless_classes_lists_them(digits):
    _, vectors, truth, _ = digits
    model, years = ComplementaryClassifier(mix="none", epochs=1), (truth + 1) % 10 + 2019
    for count in (300, len(years)):
        with pytest.raises(UserError, match=r"2019 of 2029 classes without a label.*pass classes=\[2019, 2020"):
            model.fit(vectors[:count], years[:count])
    assert model.fit(vectors, years, classes=range(2019, 2029)).classes_.tolist() == list(range(2019, 2029))


def test_verbose_logs_first_and_last_epoch_on_stderr(capsys, monkeypatch):
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    x = np.random.default_rng(0).normal(size=(60, 2))
    options = {"mix": "none", "epochs": 5, "batch": 20, "device": "cpu"}
    quiet = ComplementaryClassifier(**options).fit(x, np.arange(60) % 3)
    assert capsys.readouterr().err == ""
    verbose = clone(ComplementaryClassifier(**options, verbose=True)).fit(x, np.arange(60) % 3)
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["epoch 1/5", "epoch 5/5"]
    assert np.array_equal(quiet.predict_proba(x), verbose.predict_proba(x))


# --- truth-free evaluation ----------------------------------------------------------------------------------------


def test_estimated_accuracy_is_close_to_the_accuracy(digits):
    _, vectors, truth, excluded = digits
    model = ComplementaryClassifier(mix="none", epochs=20, batch=128).fit(vectors[300:], excluded[300:])
    assert model.estimated_accuracy(vectors, excluded) == pytest.approx(model.score(vectors, truth), abs=0.1)


def test_estimated_accuracy_uses_the_transition_matrix_of_the_fit(digits, tmp_path):
    _, vectors, truth, _ = digits
    biased = transitions.biased(10, 10)
    np.savetxt(tmp_path / "t.csv", biased.numpy(), delimiter=",")
    excluded = labels.draw(torch.from_numpy(truth), biased, seed=0)
    model = ComplementaryClassifier(mix="none", epochs=2, transition=f"matrix:{tmp_path / 't.csv'}")
    model.fit(vectors, excluded.numpy())
    assert model.transition_ == pytest.approx(biased.numpy())
    probabilities = torch.from_numpy(model.predict_proba(vectors))
    found = model.estimated_accuracy(vectors, excluded.numpy())
    assert found == pytest.approx(float(scores.estimated_accuracy(probabilities, excluded, biased)))
    uniform = scores.estimated_accuracy(probabilities, excluded, transitions.uniform(10))
    assert found != pytest.approx(float(uniform), abs=0.01)


# --- with scikit-learn --------------------------------------------------------------------------------------------


def test_check_estimator_passes_except_for_inherent_checks():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ComplementaryClassifier(epochs=2)
        results = check_estimator(model, on_fail=None, expected_failed_checks=INHERENT)
    by_status = {status: {r["check_name"] for r in results if r["status"] == status} for status in ("failed", "xfail")}
    assert by_status == {"failed": set(), "xfail": set(INHERENT)}
    assert sum(r["status"] == "passed" for r in results) >= 50


def test_clone_and_set_params_keep_the_parameters():
    model = ComplementaryClassifier(mix="micm", epochs=3, config={"policy": "cutout"})
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy.set_params(epochs=9).get_params() == model.get_params() | {"epochs": 9}
    assert repr(ComplementaryClassifier(epochs=3)) == "ComplementaryClassifier(epochs=3)"


def test_pipeline_and_grid_search_work_without_true_labels(digits):
    _, vectors, truth, _ = digits
    one = labels.draw(torch.from_numpy(truth), transitions.uniform(10), seed=1).argmax(1).numpy()
    pipe = make_pipeline(StandardScaler(), ComplementaryClassifier(mix="none", epochs=20)).fit(vectors, one)
    assert pipe.score(vectors, truth) > 0.4
    scoring = ComplementaryClassifier.estimated_accuracy
    search = GridSearchCV(ComplementaryClassifier(mix="none", epochs=8), {"lr": [1e-6, 3e-3]}, cv=2, scoring=scoring)
    assert search.fit(vectors, one).best_params_ == {"lr": 3e-3}
    search = GridSearchCV(ComplementaryClassifier(mix="none", epochs=8), {"lr": [1e-6, 3e-3]}, cv=2)
    with pytest.warns(UserWarning, match="significantly below chance"):
        assert search.fit(vectors, one).best_params_ == {"lr": 3e-3}


def test_scorer_takes_pipelines_and_searches(digits):
    _, vectors, truth, _ = digits
    one = labels.draw(torch.from_numpy(truth), transitions.uniform(10), seed=1).argmax(1).numpy()
    pipe = make_pipeline(StandardScaler(), ComplementaryClassifier(mix="none", epochs=8))
    scoring, grid = ComplementaryClassifier.estimated_accuracy, {"complementaryclassifier__lr": [1e-6, 3e-3]}
    search = GridSearchCV(pipe, grid, cv=2, scoring=scoring).fit(vectors, one)
    assert search.best_params_ == {"complementaryclassifier__lr": 3e-3}
    best = search.best_estimator_
    assert scoring(search, vectors, one) == best[-1].estimated_accuracy(best[0].transform(vectors), one)
    with pytest.raises(UserError, match="Pipeline that ends with one; found DummyClassifier"):
        scoring(DummyClassifier().fit(vectors, truth), vectors, one)


def test_columns_of_a_frame_must_have_the_same_order(digits):
    _, vectors, _, excluded = digits
    frame = pd.DataFrame(vectors, columns=[f"pixel {i}" for i in range(64)])
    model = ComplementaryClassifier(mix="none", epochs=1, batch=128).fit(frame, excluded)
    assert model.feature_names_in_.tolist() == frame.columns.tolist()
    model.predict(frame[:5])
    with pytest.raises(ValueError, match="must be in the same order as they were in fit"):
        model.predict(frame[frame.columns[::-1]])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(vectors[:5])


def test_transition_can_be_a_matrix(digits):
    _, vectors, _, excluded = digits
    matrix = transitions.biased(10, 3).numpy()
    model = ComplementaryClassifier(transition=matrix, loss="fwd", mix="none", epochs=1, batch=128)
    assert np.allclose(model.fit(vectors, excluded).transition_, matrix)
    assert np.allclose(clone(model).fit(vectors, excluded).transition_, matrix)
    for bad, message in ((np.ones((2, 3)), r"shape \[2, 3\]"), (np.ones((10, 10)), "sums to 10"), ([{}], "of numbers")):
        with pytest.raises(UserError, match=message):
            ComplementaryClassifier(transition=bad).fit(vectors, excluded)


def test_score_with_complementary_labels_warns_and_is_the_estimated_accuracy(digits, fitted):
    _, vectors, truth, excluded = digits
    one = excluded.argmax(1)
    with pytest.warns(UserWarning, match="significantly below chance"):
        assert fitted.score(vectors, one) == pytest.approx(fitted.estimated_accuracy(vectors, one))
    fitted.score(vectors, truth)  # no warning: warnings are errors in the tests


def test_score_is_the_accuracy_if_predictions_are_wrong_by_chance_too(digits, fitted):
    _, vectors, truth, _ = digits
    predicted = fitted.predict(vectors)
    assert fitted.score(vectors, truth) == np.mean(predicted == truth)
    wrong = (predicted == 3) & (truth != 3)
    assert fitted.score(vectors[wrong], truth[wrong]) == 0, "by chance, too: no prediction is right"
    no_class = np.full(len(vectors), -1)
    assert fitted.score(vectors, no_class) == 0


def test_accuracy_estimate_has_the_value_of_estimated_accuracy_and_an_interval(digits, fitted):
    _, vectors, _, excluded = digits
    found = fitted.accuracy_estimate(vectors, excluded)
    assert found.value == pytest.approx(fitted.estimated_accuracy(vectors, excluded), abs=1e-4)
    assert found.low < found.value < found.high
    assert found.population == "data"
    with pytest.warns(UserWarning, match="too uncertain"):
        balanced = fitted.accuracy_estimate(vectors, excluded, population="balanced")
    assert balanced.population == "balanced"


def test_accuracy_estimate_warns_about_images_that_the_encoder_has_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path))
    narrow_networks(monkeypatch)
    train = data.load("digits").train
    excluded = labels.draw(train.truth, transitions.uniform(10), 3)
    options = {"inputs": "features", "pretrain_epochs": 1}
    model = ComplementaryClassifier(encoder="simsiam", mix="none", epochs=1, device="cpu", config=options)
    model.fit(train.inputs[:700].numpy(), excluded[:700].numpy())
    with pytest.warns(UserWarning, match="100 of these 400"):
        model.accuracy_estimate(train.inputs[600:1000].numpy(), excluded[600:1000].numpy())
    assert model.accuracy_estimate(train.inputs[700:].numpy(), excluded[700:].numpy()).value < 1, "no warning"


def test_accuracy_estimate_warns_about_what_a_fine_tuned_encoder_has_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path))
    narrow_networks(monkeypatch)
    train = data.load("digits").train
    excluded = labels.draw(train.truth, transitions.uniform(10), 3)
    images, answers = train.inputs[600:1000].numpy(), excluded[600:1000].numpy()
    options = {"pretrain_epochs": 1, "self_training": 1, "inputs": "features"}
    model = ComplementaryClassifier(recipe="self-training", encoder="simsiam", epochs=1, device="cpu", config=options)
    model.fit(train.inputs[:700].numpy(), excluded[:700].numpy())
    assert model.predictor_.encoder is None, "the encoder is part of the network"
    with pytest.warns(UserWarning, match="100 of these 400"):
        model.accuracy_estimate(images, answers)
    model.encoder_images_ = None  # as after a fit with an encoder file that does not list them
    with pytest.warns(UserWarning, match="not known which images the encoder simsiam"):
        model.accuracy_estimate(images, answers)


def test_accuracy_estimate_includes_the_error_of_an_estimated_matrix(digits):
    _, vectors, _, excluded = digits
    known = ComplementaryClassifier(mix="none", epochs=2, batch=128).fit(vectors, excluded)
    assert known.transition_estimate_ is None
    options = {"transition": "estimate", "config": {"estimate_epochs": 1}}
    model = ComplementaryClassifier(mix="none", epochs=2, batch=128, **options).fit(vectors, excluded)
    assert np.array_equal(model.transition_estimate_.matrix.numpy(), model.transition_)
    with pytest.warns(UserWarning, match="no estimate"):  # one epoch is too little for a matrix
        assert pickle.loads(pickle.dumps(model)).accuracy_estimate(vectors, excluded).examples == len(vectors)


def test_pickle_gives_the_same_predictions(digits, fitted):
    _, vectors, _, _ = digits
    copy = pickle.loads(pickle.dumps(fitted))
    assert (copy.predict_proba(vectors) == fitted.predict_proba(vectors)).all()


def test_pickle_is_about_as_large_as_the_weights():
    images = np.random.default_rng(0).integers(0, 256, (5000, 32, 32, 3), dtype=np.uint8)
    model = ComplementaryClassifier(mix="none", model="linear", epochs=1).fit(images, np.arange(5000) % 10)
    weights = sum(w.numel() * 4 for w in model.predictor_.network.parameters())
    assert weights == 4 * 10 * 3073
    assert len(pickle.dumps(model)) < weights + 10_000


def test_classifier_works_without_scikit_learn():
    code = """
import sys
sys.modules["sklearn"] = None
import numpy as np
from complementary import ComplementaryClassifier
model = ComplementaryClassifier(mix="none", epochs=1, device="cpu")
try:
    model.predict(np.zeros((1, 2)))
except ValueError as error:
    print(type(error).__name__)
print(model.fit(np.zeros((40, 2)), np.arange(40) % 3).predict_proba(np.zeros((1, 2))).shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["NotFittedError", "(1,", "3)"], done.stderr


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "not_y", "found"),
    [
        (np.zeros((4, 2)), [0, 1, 2], "X has 4 examples but not_y has 3"),
        (np.full((4, 2), np.nan), [0, 1, 2, 0], "NaN"),
        (np.zeros((4, 2, 2)), [0, 1, 2, 0], "uint8"),
        (np.zeros(4), [0, 1, 2, 0], "Reshape your data"),
        (np.array([["a", "b"]] * 4), [0, 1, 2, 0], "numbers"),
        (np.zeros((4, 2), complex), [0, 1, 2, 0], "Complex"),
        (np.array([["a", 1]] * 4, object), [0, 1, 2, 0], "not all values of column 0 are numbers"),
        (np.zeros((4, 0)), [0, 1, 2, 0], r"0 feature"),
        (np.zeros((1, 2)), [0], "1 sample"),
        (np.zeros((4, 2)), None, "y is None"),
        (np.zeros((4, 2)), [0, 1, 2, -1], "-1"),
        (np.zeros((4, 2)), [{0}, {1}, set(), {2}], "Example 2"),
        (np.zeros((4, 2)), [{0, 1, 2}, {1}, {2}, {2}], "Example 0"),
        (np.zeros((4, 2)), np.array([0.5, 1, 2, 0]), "continuous"),
        (np.zeros((4, 2)), 7, "int"),
        (np.zeros((4, 2)), ["cat", "dog", None, "cat"], "Example 2"),
    ],
)
def test_fit_rejects_bad_input(x, not_y, found):
    with pytest.raises(UserError, match=found):
        ComplementaryClassifier(batch=2, mix="none").fit(x, not_y)


def test_fit_rejects_sparse_input():
    from scipy.sparse import csr_array

    with pytest.raises(UserError, match="sparse"):
        ComplementaryClassifier().fit(csr_array(VECTORS), NOT_Y)


@pytest.mark.parametrize(
    ("x", "options", "option", "found"),
    [
        (VECTORS, {"epochs": "10"}, "epochs", "'10'"),
        (VECTORS, {"batch": 1e3}, "batch", "1000.0"),
        (VECTORS, {"mix": "icn"}, "mix", "'icn'"),
        (VECTORS, {"config": {"epocs": 3}}, "epocs", "'epocs'"),
        (VECTORS, {"config": {"epochs": 3}}, "epochs", "'epochs'"),
        (VECTORS, {"config": {"data": "mnist"}}, "data", "'data'"),
        (VECTORS, {"config": {"weight_decay": -1.0}}, "weight_decay", "-1.0"),
        (VECTORS, {"config": {"inputs": "features"}}, "inputs", "vectors"),
        (VECTORS, {"encoder": "random", "clusters": 2}, "encoder", "vectors"),
        (VECTORS, {"clusters": 0}, "clusters", "icm"),
        (VECTORS, {"config": {"policy": "cutout"}, "mix": "none"}, "policy", "vectors"),
        (VECTORS, {"batch": 60, "mix": "none"}, "batch", "60"),
        (VECTORS, {"transition": "oracle"}, "transition", "oracle"),
    ],
)
def test_fit_errors_name_the_option_and_the_value(x, options, option, found):
    with pytest.raises(UserError, match=found) as caught:
        ComplementaryClassifier(**{"device": "cpu", "epochs": 1} | options).fit(x, NOT_Y)
    assert option in str(caught.value)
    assert "--" not in str(caught.value)


def test_options_of_numpy_types_are_accepted(digits):
    _, vectors, _, excluded = digits
    model = ComplementaryClassifier(mix="none", epochs=np.int64(1), lr=np.float64(0.1), batch=np.int64(64))
    assert len(model.fit(vectors, excluded).history_) == 1


def test_predict_before_fit_raises_not_fitted_error():
    with pytest.raises(NotFittedError, match="fit"):
        ComplementaryClassifier().predict(VECTORS)


def test_predict_rejects_another_number_of_features_and_nan(fitted):
    with pytest.raises(UserError, match=r"3 features.*64"):
        fitted.predict(np.zeros((1, 3)))
    with pytest.raises(UserError, match="NaN"):
        fitted.predict(np.full((1, 64), np.nan))


def test_score_rejects_labels_of_another_length(digits, fitted):
    _, vectors, truth, _ = digits
    with pytest.raises(UserError, match=r"\[3\]"):
        fitted.score(vectors, truth[:3])


def test_estimates_need_one_label_set_for_each_example():
    x, not_y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 3
    model = ComplementaryClassifier(mix="none", epochs=1, batch=20).fit(x, not_y)
    for estimate in (model.accuracy_estimate, model.estimated_accuracy):
        for wrong in (not_y[:10], np.tile(not_y, 2)):
            with pytest.raises(UserError, match="60 examples"):
                estimate(x, wrong)


def test_estimated_matrix_needs_ten_examples():
    with pytest.raises(
        UserError, match="There are 8 training examples; estimating a transition matrix needs at least 10"
    ):
        ComplementaryClassifier(transition="estimate", holdout=0.0).fit(
            np.eye(8, 3, dtype=np.float32), [0, 1, 2, 0] * 2
        )


def test_accuracy_estimate_without_a_number_warns():
    x, not_y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 3
    model = ComplementaryClassifier(mix="none", epochs=1, batch=20).fit(x, not_y)
    model.transition_ = np.full((3, 3), 1 / 3)  # labels that say nothing
    with pytest.warns(UserWarning, match="no estimate"):
        assert np.isnan(model.accuracy_estimate(x, not_y).value)


def test_sgd_has_its_own_learning_rate_unless_one_is_given():
    for options, wanted in (({}, 0.1), ({"lr": 0.02}, 0.02)):
        model = ComplementaryClassifier(config={"optimizer": "sgd"}, **options)
        assert model._options().training.lr == wanted


def test_verbose_lines_appear_once_if_logging_is_configured(capsys):
    x = np.random.default_rng(0).normal(size=(60, 2))
    handler, root = logging.StreamHandler(sys.stderr), logging.getLogger()
    root.addHandler(handler)
    try:
        ComplementaryClassifier(mix="none", epochs=1, batch=20, verbose=True).fit(x, np.arange(60) % 3)
    finally:
        root.removeHandler(handler)
    assert capsys.readouterr().err.count("epoch 1/1") == 1


def test_estimated_accuracy_of_true_labels_gives_a_warning(digits):
    _, vectors, truth, excluded = digits
    model = ComplementaryClassifier(mix="none", epochs=20, batch=128).fit(vectors[300:], excluded[300:])
    with pytest.warns(UserWarning, match="far below 0.*may be true classes"):
        assert model.estimated_accuracy(vectors, truth) < 0


def test_fit_warns_if_nothing_was_learned(digits, caplog):
    _, vectors, _, excluded = digits
    ComplementaryClassifier(mix="none", epochs=2, batch=64, lr=1e8).fit(vectors, excluded)
    assert "The classifier may be no better than chance" in caplog.text


def test_bad_values_are_named_by_their_column():
    table = pd.DataFrame({"size": [1.0, 2.0, 3.0], "color": [1.0, 2.0, 3.0]})
    model = ComplementaryClassifier(mix="none", epochs=1)
    with pytest.raises(UserError, match=r"example 1 contains NaN or infinity \(column color\)"):
        model.fit(table.assign(color=[1.0, np.nan, 3.0]), [0, 1, 2])
    with pytest.raises(UserError, match="not all values of column 'color' are numbers"):
        model.fit(table.assign(color=["a", "b", "c"]), [0, 1, 2])


def test_images_of_another_shape_are_named_with_both_shapes():
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    model = ComplementaryClassifier(mix="none", epochs=1, model="linear").fit(images, np.arange(40) % 3)
    with pytest.raises(UserError, match=r"X has 16 x 16 x 3 pixels per example, but .* was fitted on 8 x 8 x 3 pixels"):
        model.predict(np.zeros((2, 16, 16, 3), np.uint8))


def test_labels_of_one_class_name_the_argument():
    with pytest.raises(UserError, match=r"classes=\[...\]"):
        ComplementaryClassifier().fit(np.zeros((3, 2)), ["a", "a", "a"])
