"""Moments of gradients against an enumeration of all labels, through the mixers and losses themselves; the study."""

import dataclasses
import itertools
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import one_hot

from complementary import data, mixing, networks, oracle, transitions
from complementary.augment.crop import normalize
from complementary.config import AS_CODED, Config
from complementary.data import Dataset, Split
from complementary.data.selection import validation_split
from complementary.errors import UserError
from complementary.labels import draw
from complementary.losses import LOSSES, s_nl
from complementary.paper import gradients
from complementary.paper.gradients import METHODS, exact, label_chances, mixed, per_example, sampled, study
from complementary.paper.store import read_measurement
from complementary.rng import generator

TRANSITIONS = {"uniform": transitions.uniform, "biased": lambda k: transitions.biased(k, 10)}
TRANSITIONS["noisy"] = lambda k: transitions.noisy(k, 0.2)
MIXERS = {
    "none": None,
    "mixup": mixing.Mixup(1.0),
    "icm": mixing.ICM(1.0),
    "icm-as-coded": mixing.ICM(1.0, **AS_CODED["icm"]),
    "icm-keep": mixing.ICM(1.0, alone="keep", lam="batch"),
    "icm-soft": mixing.ICM(1.0, share="soft-label"),
    "micm": mixing.MICM(1.0),
    "micm-as-coded": mixing.MICM(1.0, **AS_CODED["micm"]),
}

PAPER = ("s-nl", "s-exp", "fwd", "dm")


def task(classes, count, seed, model="linear", size=4):
    source = generator(seed, "task")
    x = torch.randn(count, size, generator=source)
    truth = torch.randint(classes, (count,), generator=source)
    cluster = torch.randint(2, (count,), generator=source)
    return networks.build(model, (size,), classes, seed), x, truth, cluster


def flat_gradient(model, value):
    found = torch.autograd.grad(value, list(model.parameters()))
    return torch.cat([g.flatten() for g in found]).double()


def through_mixer(mixer, x, label, cluster, seed):
    """What training computes: the mixer itself, with the same draws each time. -> (x, soft label)."""
    return (x, label) if mixer is None else mixer(x, label, cluster, generator=generator(seed, "mix"))


def batch_mean(mixer, losses, soft):
    """As in training: over mixes that carry a label; as coded, black images count too."""
    black = mixer is not None and mixer.alone == "black"
    return losses.mean() if black else losses.sum() / (soft.sum(1) > 0).sum().clamp_min(1)


def matched(mixer):
    """The same mixer with labels weighted as the images are: it mixes true labels rightly."""
    if mixer is None or mixer.share != "new-data":
        return None

    class Matched(type(mixer)):
        def weights(self, inputs, weight, chosen):
            image, _ = super().weights(inputs, weight, chosen)
            return image, image

    return Matched(**vars(mixer))


def enumerate_labels(model, loss, mixer, x, truth, cluster, transition, seed, target="clean"):
    """Every combination of labels that can be drawn: f [D], and lists of (probability, c [D], labels)."""
    classes = len(transition)
    if target == "clean":
        towards = flat_gradient(model, torch.nn.functional.cross_entropy(model(x), truth))
    else:
        towards = mixed_gradient(model, mixer, x, truth, cluster, classes, seed)
    draws = []
    for labels in itertools.product(range(classes), repeat=len(x)):
        chance = float(transition[truth, torch.tensor(labels)].prod())
        if chance > 0:
            inputs, soft = through_mixer(mixer, x, one_hot(torch.tensor(labels), classes).float(), cluster, seed)
            losses = loss(model(inputs), soft, transition)
            draws.append((chance, flat_gradient(model, batch_mean(mixer, losses, soft)), labels))
    return towards, draws


def mixed_gradient(model, mixer, x, truth, cluster, classes, seed):
    """f [D] on the mixed inputs with the true labels mixed alike."""
    _, soft_truth = through_mixer(matched(mixer), x, one_hot(truth, classes).float(), cluster, seed)
    given = through_mixer(mixer, x, one_hot(truth, classes).float(), cluster, seed)[0]
    alone = through_mixer(mixer, x, torch.ones(len(x), classes), cluster, seed)[1].sum(1) == 0
    losses = torch.where(alone, 0.0, -(soft_truth * model(given).log_softmax(1)).sum(1))
    return flat_gradient(model, batch_mean(mixer, losses, (~alone).float()[:, None]))


def moments_by_definition(towards, draws):
    mean = sum(chance * c for chance, c, _ in draws)
    mse = sum(chance * (c - towards).square().sum() for chance, c, _ in draws)
    variance = sum(chance * (c - mean).square().sum() for chance, c, _ in draws)
    return mse, (mean - towards).square().sum(), variance, towards.square().sum()


# --- exact moments --------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(PAPER),
    st.sampled_from(list(MIXERS)),
    st.sampled_from(list(TRANSITIONS)),
    st.integers(2, 4),
    st.integers(2, 3),
    st.sampled_from(["clean", "mixed"]),
    st.integers(0, 9999),
)
def test_exact_moments_agree_with_an_enumeration_of_all_labels(loss, name, kind, classes, count, target, seed):
    mixer, transition = MIXERS[name], TRANSITIONS[kind](classes)
    model, x, truth, cluster = task(classes, count, seed)
    drawn = enumerate_labels(model, LOSSES[loss], mixer, x, truth, cluster, transition, seed, target)
    wanted = moments_by_definition(*drawn)
    batch = mixed(mixer, x, truth, cluster, generator(seed, "mix"))
    found = exact(model, LOSSES[loss], batch, transition, target=target)
    for a, b in zip(found, wanted, strict=True):
        assert float(a) == pytest.approx(float(b), rel=1e-4, abs=1e-6)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from(PAPER),
    st.sampled_from(list(MIXERS)),
    st.integers(2, 8),
    st.integers(2, 20),
    st.booleans(),
    st.sampled_from(["clean", "mixed"]),
    st.integers(0, 9999),
)
def test_exact_mse_is_squared_bias_plus_variance(loss, name, classes, count, noise_free, target, seed):
    model, x, truth, cluster = task(classes, count, seed, "mlp")
    batch = mixed(MIXERS[name], x, truth, cluster, generator(seed, "mix"))
    options = {"noise_free": noise_free, "target": target}
    found = exact(model, LOSSES[loss], batch, transitions.uniform(classes), **options)
    assert float(found.mse) == pytest.approx(float(found.bias_squared + found.variance), rel=1e-6, abs=1e-9)
    assert float(found.variance) >= -1e-9
    if classes == 2:  # one label is possible: nothing is left to chance
        assert float(found.variance) == pytest.approx(0, abs=1e-9)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.sampled_from(PAPER), st.integers(3, 5), st.integers(0, 9999))
def test_exact_identity_does_not_hold_with_the_mean_of_eq_11(loss, classes, seed):
    """There b is the mean over labels other than the *drawn* one, and so differs from draw to draw."""
    model, x, truth, _ = task(classes, 1, seed)
    transition = transitions.uniform(classes)
    every = per_example(model, LOSSES[loss], x.expand(classes, -1), torch.eye(classes), transition.float()).double()
    towards, draws = enumerate_labels(model, LOSSES[loss], None, x, truth, None, transition, seed)
    mse, bias, variance, _ = moments_by_definition(towards, draws)
    assert float(mse) == pytest.approx(float(bias + variance), rel=1e-9)
    bias_11 = variance_11 = 0.0
    for chance, c, (label,) in draws:
        b = (every.sum(0) - every[label]) / (classes - 1)
        bias_11 += chance * float((b - towards).square().sum())
        variance_11 += chance * float((b - c).square().sum())
    assert abs(bias_11 + variance_11 - float(mse)) > 0.01 * float(mse)


def test_exact_uses_the_same_label_of_an_example_in_all_its_mixes():
    """Two examples mixed with each other half and half: the batch's gradient sees each label with full weight."""
    model, x, truth, _ = task(3, 2, 0)
    half = torch.full((2, 2), 0.5)
    members = torch.tensor([[0, 1], [1, 0]])
    same = x[:1].expand(2, -1)  # both mixes are the same point, so labels are all that differs
    pair = gradients.Mixed(same, x, truth, members, half, half, torch.full((2,), 0.5))
    plain = gradients.Mixed(same, x, truth, torch.tensor([[0], [1]]), half[:, :1] * 2, half[:, :1] * 2, pair.share)
    found, wanted = (exact(model, LOSSES["s-nl"], b, transitions.uniform(3)) for b in (pair, plain))
    assert float(found.variance) == pytest.approx(float(wanted.variance), rel=1e-5)
    assert float(wanted.variance) > 1e-4


@pytest.mark.parametrize("name", [name for name in MIXERS if name != "none"])
def test_mixed_batch_is_what_the_mixer_makes(name):
    _, x, truth, cluster = task(5, 16, 1, size=6)
    cluster[0] = 7  # alone
    labels = one_hot(torch.arange(16) % 5, 5).float()
    batch = mixed(MIXERS[name], x, truth, cluster, generator(3, "mix"))
    wanted_x, wanted_soft = MIXERS[name](x, labels, cluster, generator=generator(3, "mix"))
    assert torch.allclose(batch.x, wanted_x, atol=1e-6)
    counted = batch.share > 0
    assert torch.allclose(batch.soft(labels)[counted], wanted_soft[counted], atol=1e-6)
    assert float(wanted_soft[~counted].abs().sum()) == 0
    assert bool(counted[0]) == (name == "mixup" or MIXERS[name].alone == "keep")
    expected = 15 / 16 if MIXERS[name].alone == "black" else 1.0
    assert float(batch.share.sum()) == pytest.approx(expected)


def test_per_example_gradients_agree_with_autograd():
    model, x, truth, _ = task(4, 5, 2, "mlp")
    target = one_hot(truth, 4).float()
    found = per_example(model, gradients.cross_entropy, x, target)
    for i in range(5):
        wanted = flat_gradient(model, torch.nn.functional.cross_entropy(model(x[i : i + 1]), truth[i : i + 1]))
        assert torch.allclose(found[i].double(), wanted, atol=1e-6)


# --- noise-free labels ----------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.sampled_from(["mixup", "icm", "micm"]), st.integers(3, 4), st.integers(2, 4), st.integers(0, 9999))
def test_label_chances_are_conditioned_on_no_noisy_mix(name, classes, count, seed):
    _, x, truth, cluster = task(classes, count, seed)
    transition = transitions.biased(classes, 5)
    batch = mixed(MIXERS[name], x, truth, cluster, generator(seed, "mix"))
    joint = {}
    for labels in itertools.product(range(classes), repeat=count):
        noisy = oracle.is_noisy(batch.members, truth, one_hot(torch.tensor(labels), classes)) & (batch.share > 0)
        chance = float(transition[truth, torch.tensor(labels)].prod())
        if chance > 0 and not noisy.any():
            joint[labels] = chance
    chances = label_chances(batch, transition, noise_free=True)
    assert torch.allclose(chances.sum(1), torch.ones(count, dtype=torch.float64))
    for labels, chance in joint.items():
        found = float(chances[torch.arange(count), torch.tensor(labels)].prod())
        assert found == pytest.approx(chance / sum(joint.values()), rel=1e-9)


def test_label_chances_without_a_clean_label_are_unchanged():
    _, x, _, _ = task(2, 2, 0)
    batch = mixed(mixing.Mixup(), x, torch.tensor([0, 1]), None, generator(0, "mix"))
    assert label_chances(batch, transitions.uniform(2), noise_free=True).tolist() == [[0, 1], [1, 0]]


@pytest.mark.gpu
def test_study_on_a_gpu_measures_what_it_does_on_a_cpu():
    config = Config.of(data="digits", model="mlp", encoder="pixels", clusters=10, restarts=1, batch=64, padding=0)
    on_gpu, on_cpu = (study(config, steps=0, draws=32, device=device) for device in ("cuda", "cpu"))
    for found, wanted in zip(on_gpu, on_cpu, strict=True):
        assert found["method"] == wanted["method"]
        assert found["oracle_target_squared"] == pytest.approx(wanted["oracle_target_squared"], rel=1e-3)
        assert found["oracle_mse"] == pytest.approx(wanted["oracle_mse"], rel=0.2)  # other random numbers


# --- sampled moments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "mixup", "micm"])
@pytest.mark.parametrize("noise_free", [False, True])
def test_sampled_moments_agree_with_the_exact_ones(name, noise_free):
    model, x, truth, cluster = task(6, 12, 4, "mlp")
    batch = mixed(MIXERS[name], x, truth, cluster, generator(4, "mix"))
    options = (model, LOSSES["s-nl"], batch, transitions.uniform(6))
    wanted = exact(*options, noise_free=noise_free)
    found = sampled(*options, 1000, generator(4, "draws"), noise_free=noise_free)
    assert float(found.bias_squared) == pytest.approx(float(wanted.bias_squared), rel=1e-5)
    assert float(found.variance) == pytest.approx(float(wanted.variance), rel=0.1)
    assert float(found.mse) == pytest.approx(float(wanted.mse), rel=0.1)
    assert float(found.mse) == pytest.approx(float(found.bias_squared + found.variance))


def test_sampled_supports_batch_norm():
    source = generator(0, "cnn")
    model, x = networks.build("cnn", (1, 8, 8), 4), torch.randn(6, 1, 8, 8, generator=source)
    batch = mixed(mixing.Mixup(), x, torch.arange(6) % 4, None, source)
    transition = transitions.uniform(4)
    with pytest.raises(UserError, match="batch norm"):
        exact(model, LOSSES["s-nl"], batch, transition)
    found = sampled(model, LOSSES["s-nl"], batch, transition, 5, source)
    assert float(found.variance) > 0
    assert int(model.norms[0].num_batches_tracked) == 2  # the mixed and the ordinary batch, once for all draws
    found = exact(model.eval(), LOSSES["s-nl"], batch, transition)
    drawn = sampled(model, LOSSES["s-nl"], batch, transition, 400, source)
    assert float(found.variance) == pytest.approx(float(drawn.variance), rel=0.2)


@pytest.mark.parametrize(
    ("mixer", "message"),
    [
        (mixing.SameExcluded(), "SameExcluded chooses partners by their labels"),
        (mixing.ExtraClass(), "ExtraClass chooses partners by their labels"),
        (mixing.Mixup(share="hard-label"), "not linear in the labels"),
        (mixing.Mixup(pool=mixing.Pool(None, None)), "partners_from"),
    ],
)
def test_mixed_rejects_mixers_that_cannot_be_measured(mixer, message):
    _, x, truth, cluster = task(3, 4, 0)
    with pytest.raises(UserError, match=message):
        mixed(mixer, x, truth, cluster)


# --- the study ------------------------------------------------------------------------------------------------------

CONFIG = Config.of(data="digits", model="linear", batch=64, encoder="pixels", clusters=20, restarts=1)
MIXED = ("none", "mixup", "icm", "micm")


@pytest.mark.parametrize(("loss", "model"), [("s-nl", "mlp"), ("fwd", "linear"), ("dm", "linear")])
def test_study_rows_fulfil_the_identity(loss, model):
    methods = (*MIXED, "mixup-noise-free", "intra-class")
    rows = study(CONFIG.with_(loss=loss, model=model, batch=32), methods=methods, steps=2, every=2, device="cpu")
    assert [(row["step"], row["method"]) for row in rows] == [(step, m) for step in (0, 2) for m in methods]
    for row in json.loads(json.dumps(rows)):  # plain values
        assert row["oracle_mse"] == pytest.approx(row["oracle_bias_squared"] + row["oracle_variance"], rel=1e-6)
        assert row["oracle_variance"] > 0
        assert row["loss"] == loss


def test_study_trains_on_the_true_gradient_alone():
    """The second measurement, by hand: one SGD step on cross-entropy, then the moments of the second batch."""
    digits = data.load("digits")
    found = study(CONFIG, digits, methods=("none",), steps=1, every=1, lr=0.5, device="cpu")
    train, _ = validation_split(len(digits.train), CONFIG.dataset.holdout, CONFIG.seed)
    inputs, truth = digits.train.inputs[train], digits.train.truth[train]
    x = normalize(inputs, torch.tensor(digits.mean), torch.tensor(digits.std))
    model = networks.build("linear", (1, 8, 8), 10, CONFIG.seed)
    for step in range(2):
        index = gradients._batch(CONFIG, len(train), step)
        wanted = gradients.exact(model, s_nl, gradients.mixed(None, x[index], truth[index]), transitions.uniform(10))
        assert found[step]["oracle_mse"] == pytest.approx(float(wanted.mse), rel=1e-4)
        loss = torch.nn.functional.cross_entropy(model(x[index]), truth[index])
        for weight, slope in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
            weight.data -= 0.5 * slope
    assert found[0]["oracle_mse"] != pytest.approx(found[1]["oracle_mse"], rel=1e-3)


def test_study_target_is_the_same_for_all_methods_unless_it_is_mixed():
    rows = study(CONFIG, methods=MIXED, steps=0, device="cpu")
    assert len({round(row["oracle_target_squared"], 9) for row in rows}) == 1
    rows = study(CONFIG, methods=MIXED, steps=0, device="cpu", target="mixed")
    assert len({round(row["oracle_target_squared"], 9) for row in rows}) == len(MIXED)


@pytest.mark.slow
def test_study_on_the_digits_has_the_order_of_the_paper():
    """Bias² on an MLP: noise-free Mixup < intra-class, about ICM < Mixup; the mixed target reverses ICM and Mixup."""
    config = CONFIG.with_(model="mlp", batch=128, alpha=0.4)
    means = {}
    for target in ("clean", "mixed"):
        rows = study(config, steps=40, every=20, device="cpu", target=target)
        for name in METHODS:
            found = [row["oracle_bias_squared"] for row in rows if row["method"] == name]
            means[target, name] = sum(found) / len(found)
    free, mixup, icm, intra = (means["clean", name] for name in ("mixup-noise-free", "mixup", "icm", "intra-class"))
    assert free < mixup
    assert max(icm, intra) < mixup
    assert icm == pytest.approx(intra, rel=0.01)
    assert means["mixed", "icm"] > means["mixed", "mixup"]


def test_study_methods_do_not_affect_each_other():
    together = study(CONFIG, methods=MIXED, steps=2, every=1, device="cpu")
    alone = study(CONFIG, methods=("micm",), steps=2, every=1, device="cpu")
    assert [row for row in together if row["method"] == "micm"] == alone


def test_study_draws_anew_at_every_step_and_alike_for_all_methods(monkeypatch):
    seeds, mixed = [], gradients.mixed

    def watched(mixer, x, truth, cluster, generator):
        seeds.append(generator.initial_seed())
        return mixed(mixer, x, truth, cluster, generator)

    monkeypatch.setattr(gradients, "mixed", watched)
    study(CONFIG, methods=("none", "mixup"), steps=1, every=1, device="cpu")
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]


def test_study_with_sampled_labels_is_nearly_exact():
    exact, drawn = (study(CONFIG, methods=("icm",), steps=0, draws=n, device="cpu")[0] for n in (None, 500))
    assert drawn["oracle_variance"] == pytest.approx(exact["oracle_variance"], rel=0.1)
    assert drawn["oracle_bias_squared"] == pytest.approx(exact["oracle_bias_squared"], rel=1e-4)


def given_labels(transition):
    digits = data.load("digits").train
    split = Split(digits.inputs, digits.truth, draw(digits.truth, transition, seed=5))
    return Dataset("given", split, None, tuple("0123456789"), (0.3,), (0.4,))


def test_study_counts_the_transition_of_given_labels():
    """Annotators who always name the next class leave nothing to chance."""
    shifted = torch.eye(10, dtype=torch.float64).roll(1, dims=1)
    row = study(CONFIG, given_labels(shifted), methods=("none",), steps=0, device="cpu")[0]
    assert row["oracle_variance"] == pytest.approx(0, abs=1e-9)
    row = study(CONFIG, given_labels(transitions.uniform(10)), methods=("none",), steps=0, device="cpu")[0]
    assert row["oracle_variance"] > 1e-4


@pytest.mark.parametrize(
    ("options", "settings", "message"),
    [
        ({"methods": ("mixdown",)}, {}, "mixdown"),
        ({"methods": ("extra-class",)}, {}, "chooses partners by their labels"),
        ({"every": 0}, {}, "every 0"),
        ({"target": "noisy"}, {}, "noisy"),
        ({}, {"per_example": 3}, "up to 3"),
        ({}, {"model": "cnn"}, "batch norm"),
    ],
)
def test_study_rejects_bad_input(options, settings, message):
    with pytest.raises(UserError, match=message):
        study(CONFIG.with_(**settings), **{"steps": 0, "device": "cpu", "methods": ("none",)} | options)


def test_study_needs_true_labels():
    blind = dataclasses.replace(given_labels(transitions.uniform(10)), name="blind")
    blind = dataclasses.replace(blind, train=dataclasses.replace(blind.train, truth=None))
    with pytest.raises(UserError, match="has no true labels, which an oracle study needs"):
        study(CONFIG, blind, methods=("none",), steps=0, device="cpu")


def test_run_measures_once_and_writes_a_file(tmp_path):
    config = Config.of(data="digits", model="linear", batch=128, epochs=1, encoder="pixels", clusters=10, restarts=1)
    path = gradients.run(config, tmp_path, "ours", draws=0, device="cpu")
    before = path.read_bytes()
    assert gradients.run(config, tmp_path, "ours", draws=0, device="cpu") == path
    assert path.read_bytes() == before
    rows = json.loads(read_measurement(path)["gradients"])
    steps = 1293 // 128  # 1,437 less a tenth
    assert {row["step"] for row in rows} == set(range(steps + 1))
    assert {row["method"] for row in rows} == set(METHODS)
    for row in rows:
        assert row["oracle_mse"] == pytest.approx(row["oracle_bias_squared"] + row["oracle_variance"], rel=1e-4)
