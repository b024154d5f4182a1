import pickle
import re

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from complementary import ComplementaryClassifier, files, labels, transitions
from complementary.errors import UserError
from complementary.estimator import as_inputs


@pytest.fixture(scope="module")
def digits():
    source = load_digits()
    excluded = labels.draw(torch.from_numpy(source.target).long(), transitions.uniform(10), 3, seed=0)
    return source.images.astype(np.uint8) * 15, source.data, source.target, excluded.numpy()


@pytest.mark.parametrize("form", ["matrix", "sets", "vector"])
def test_fit_on_every_form_of_labels(digits, form):
    _, vectors, truth, excluded = digits
    forms = {
        "matrix": excluded,
        "sets": [set(np.flatnonzero(row).tolist()) for row in excluded],
        "vector": labels.draw(torch.from_numpy(truth), transitions.uniform(10), seed=1).argmax(1).numpy(),
    }
    model = ComplementaryClassifier(mix="icm", clusters=30, epochs=40, batch=128).fit(vectors[300:], forms[form][300:])
    assert model.score(vectors[:300], truth[:300]) > (0.75 if form != "vector" else 0.5)
    assert model.predict_proba(vectors[:5]).sum(1) == pytest.approx(np.ones(5), abs=1e-5)


def test_images_and_vectors_are_both_welcome(digits):
    images, _, truth, excluded = digits
    model = ComplementaryClassifier(epochs=30, batch=128).fit(images[300:], excluded[300:])
    assert model.score(images[:300], truth[:300]) > 0.7
    assert model.classes_.tolist() == list(range(10))


def test_predictions_come_from_the_epoch_chosen_without_truth(digits):
    _, vectors, _, excluded = digits
    model = ComplementaryClassifier(mix="none", epochs=5, batch=128).fit(vectors, excluded)
    chosen = model.trainer_.selected
    assert all(torch.equal(v, chosen[k]) for k, v in model.trainer_.model.state_dict().items())


def test_the_same_seed_gives_the_same_classifier(digits):
    _, vectors, _, excluded = digits
    a, b = (ComplementaryClassifier(epochs=2, clusters=10).fit(vectors, excluded).predict_proba(vectors) for _ in "ab")
    assert (a == b).all()


def test_scikit_learn_can_clone_and_change_it():
    model = ComplementaryClassifier(mix="micm", epochs=3)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy.set_params(epochs=9).config.training.epochs == 9
    assert copy.config.mixing.mix == "micm"


@pytest.mark.parametrize(
    ("x", "not_y", "said"),
    [
        (np.zeros((4, 2)), [0, 1, 2], "X has 4 examples but not_y has 3"),
        (np.full((4, 2), np.nan), [0, 1, 2, 0], "example 0 holds NaN"),
        (np.zeros((4, 2, 2)), [0, 1, 2, 0], "Images must be uint8"),
        (np.zeros(4), [0, 1, 2, 0], r"X has shape \[4\]"),
        (np.array([["a", "b"]] * 4), [0, 1, 2, 0], "not numbers"),
        (np.zeros((4, 2)), [0, 1, 2, -1], "A label is -1"),
        (np.zeros((4, 2)), [{0}, {1}, set(), {2}], "Example 2 excludes no class"),
        (np.zeros((4, 2)), [{0, 1, 2}, {1}, {2}, {2}], "Example 0 excludes every class"),
        (np.zeros((4, 2)), [0.5, 1, 2, 0], "whole numbers"),
        (np.zeros((4, 2)), 7, "found int"),
    ],
)
def test_bad_input_is_one_sentence(x, not_y, said):
    with pytest.raises(UserError, match=said):
        ComplementaryClassifier(batch=2, mix="none").fit(x, not_y)


def test_predicting_before_fitting_or_with_another_shape(digits):
    with pytest.raises(UserError, match="call fit"):
        ComplementaryClassifier().predict(np.zeros((1, 2)))
    _, vectors, _, excluded = digits
    model = ComplementaryClassifier(mix="none", epochs=1).fit(vectors, excluded)
    with pytest.raises(UserError, match=r"shape \[3\], but the fit was on \[64\]"):
        model.predict(np.zeros((1, 3)))


def test_an_unknown_option_is_named():
    with pytest.raises(UserError, match="The option 'epocs' is not known"):
        ComplementaryClassifier(epocs=3)


def test_image_layouts():
    assert as_inputs(np.zeros((2, 5, 6), np.uint8)).shape == (2, 1, 5, 6)
    assert as_inputs(np.zeros((2, 5, 6, 3), np.uint8)).shape == (2, 3, 5, 6)
    assert as_inputs(np.zeros((2, 3, 5, 6), np.uint8)).shape == (2, 3, 5, 6)


# --- with scikit-learn ----------------------------------------------------------------------------


def test_pipelines_and_searches_without_true_labels(digits):
    _, vectors, truth, _ = digits
    one = labels.draw(torch.from_numpy(truth), transitions.uniform(10), seed=1).argmax(1).numpy()
    pipe = make_pipeline(StandardScaler(), ComplementaryClassifier(mix="none", epochs=20)).fit(vectors, one)
    assert pipe.score(vectors, truth) > 0.4
    scoring = ComplementaryClassifier.estimated_accuracy
    search = GridSearchCV(ComplementaryClassifier(mix="none", epochs=8), {"lr": [1e-6, 3e-3]}, cv=2, scoring=scoring)
    assert search.fit(vectors, one).best_params_ == {"lr": 3e-3}
    assert repr(ComplementaryClassifier(epochs=3)) == "ComplementaryClassifier(epochs=3)"


def test_the_estimated_accuracy_is_near_the_true_one(digits):
    _, vectors, truth, excluded = digits
    model = ComplementaryClassifier(mix="none", epochs=20, batch=128).fit(vectors[300:], excluded[300:])
    assert model.estimated_accuracy(vectors, excluded) == pytest.approx(model.score(vectors, truth), abs=0.1)


def test_a_fitted_classifier_can_be_pickled(digits):
    _, vectors, _, excluded = digits
    model = ComplementaryClassifier(mix="icm", epochs=1).fit(vectors, excluded)
    copy = pickle.loads(pickle.dumps(model))
    assert (copy.predict_proba(vectors) == model.predict_proba(vectors)).all()


def test_a_class_that_no_label_excludes_is_warned_of(digits):
    _, vectors, truth, _ = digits
    with pytest.warns(UserWarning, match="No example excludes class 0.*start at 1"):
        ComplementaryClassifier(mix="none", epochs=1).fit(vectors, (truth + 1) % 10 + 1)


def test_small_data_gets_a_small_batch_and_few_clusters(digits):
    _, vectors, _, excluded = digits
    model = ComplementaryClassifier(epochs=1).fit(vectors[:40], excluded[:40])
    config = model.trainer_.config
    assert (config.training.batch, config.cluster.clusters) == (10, 4)
    assert (
        ComplementaryClassifier(epochs=1, batch=8).fit(vectors[:40], excluded[:40]).trainer_.config.training.batch == 8
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"data": "mnist"}, "The option 'data' belongs to cll train"),
        ({"epochs": "10"}, "epochs is '10', but it must be of type int"),
        ({"batch": 1e3}, "batch is 1000.0, but it must be of type int"),
    ],
)
def test_options_are_checked_by_name_and_type(options, said):
    with pytest.raises(UserError, match=said):
        ComplementaryClassifier(**options)


IMAGES, VECTORS = np.zeros((40, 8, 8), np.uint8), np.zeros((40, 2))


@pytest.mark.parametrize(
    ("x", "options", "said"),
    [
        (VECTORS, {"inputs": "features"}, "and inputs='features' needs images; leave it out."),
        (VECTORS, {"encoder": "random", "clusters": 2}, "encoders learn from images. Use encoder='pixels'."),
        (VECTORS, {"clusters": 0}, "but there are none; pass clusters=50 or mix='mixup'."),
        (VECTORS, {"policy": "cutout", "mix": "none"}, "but the inputs are vectors; leave policy out."),
        (VECTORS, {"batch": 60, "mix": "none"}, "fewer than one batch of 60; set batch to 36 or less."),
        (VECTORS, {"transition": "oracle"}, "transition='oracle' counts the true labels, but this set has none"),
        (VECTORS, {"weight_decay": -1.0}, "The option weight_decay is -1.0, but it must be 0 or more."),
        (
            IMAGES,
            {"inputs": "features", "encoder": "embeddings:z.npy"},
            "inputs='features' needs an encoder, which the encoder='embeddings:z.npy' is not; use simsiam, run:FOLDER "
            "or file:WEIGHTS. (Vectors computed elsewhere are inputs themselves: give them as X.)",
        ),
    ],
    ids=["inputs", "encoder", "two", "no value", "in brackets", "transition", "dashes", "data"],
)
def test_errors_name_options_as_keyword_arguments(x, options, said):
    with pytest.raises(UserError) as caught:
        ComplementaryClassifier(**{"device": "cpu", "epochs": 1} | options).fit(x, np.arange(40) % 3)
    assert said in str(caught.value)
    assert "--" not in str(caught.value)


def test_an_option_of_another_command_stays_as_it_is(tmp_path):
    files.write_checkpoint(tmp_path / "a", {"weights": torch.zeros(2)}, {})
    with pytest.raises(UserError, match="make one with cll cluster --out"):
        ComplementaryClassifier(assignments=str(tmp_path / "a")).fit(VECTORS, np.arange(40) % 3)


def test_numpy_numbers_are_welcome_as_options():
    assert ComplementaryClassifier(epochs=np.int64(3), lr=np.float64(0.1)).config.training.epochs == 3


def test_nan_and_wrong_lengths_are_refused_after_the_fit_too(digits):
    _, vectors, truth, excluded = digits
    model = ComplementaryClassifier(mix="none", epochs=1).fit(vectors, excluded)
    with pytest.raises(UserError, match="NaN or infinity"):
        model.predict(np.full((1, 64), np.nan))
    with pytest.raises(UserError, match=r"y has shape \[3\]"):
        model.score(vectors, truth[:3])


class Frame:
    """What of pandas matters here."""

    def __init__(self, values) -> None:
        self.values = values

    def to_numpy(self):
        return self.values


def test_frames_and_object_arrays_of_sets_are_read():
    matrix = np.array([[1, 0, 0], [0, 1, 1]])
    sets = np.empty(2, dtype=object)
    sets[:] = [{0}, {1, 2}]
    assert labels.to_excluded(Frame(matrix)).tolist() == matrix.tolist()
    assert labels.to_excluded(sets).tolist() == matrix.tolist()
    assert labels.to_excluded(Frame(sets)).tolist() == matrix.tolist()


def test_verbose_lines_are_not_written_more_often_than_they_can_be_read(capsys, monkeypatch):
    x, not_y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 3
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    ComplementaryClassifier(mix="none", epochs=5, batch=20, device="cpu", verbose=True).fit(x, not_y)
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["epoch 1/5", "epoch 5/5"]


def test_verbose_tells_of_the_epochs_and_survives_a_clone(capsys):
    x, not_y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 3
    quiet = ComplementaryClassifier(mix="none", epochs=3, batch=20, device="cpu").fit(x, not_y)
    assert capsys.readouterr().err == ""
    told = clone(ComplementaryClassifier(mix="none", epochs=3, batch=20, device="cpu", verbose=True)).fit(x, not_y)
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"epoch 1/3: loss \d\.\d{3}, scel \d\.\d{3}", lines[0])
    assert lines[-1].startswith("epoch 3/3: ")
    assert np.array_equal(quiet.predict_proba(x), told.predict_proba(x))
