import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits

from complementary import ComplementaryClassifier, labels, transitions
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
