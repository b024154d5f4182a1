"""Mixers, read from outside: inputs are unit vectors, so that a mixed row shows who was mixed and by how much."""

import numpy as np
import pytest
import torch
from scipy import stats

from complementary import mixing
from complementary.errors import UserError
from complementary.mixing import AS_CODED, ICM, MICM, MIXERS, ExtraClass, GroupMixup, IntraClass, Mixup, SameExcluded
from complementary.rng import generator

BATCH, CLASSES = 24, 6
CLUSTER = torch.tensor([7] * 9 + [2] * 8 + [0] * 3 + [5] * 2 + [1, 9])  # the last two are alone
SIZE = torch.bincount(CLUSTER)[CLUSTER]
LONELY = SIZE == 1
TRUTH = torch.arange(BATCH) % CLASSES
EXCLUDED = torch.eye(CLASSES)[(TRUTH + 1 + torch.arange(BATCH) // CLASSES) % CLASSES]
SHAPES = [(BATCH,), (1, 4, 6)]
EVERY = ["pair", "batch"], ["distinct", "any"], ["matched", "swapped", "own"]


def units(shape=(BATCH,)):
    return torch.eye(BATCH).view(BATCH, *shape)


def run(mixer, x=None, excluded=EXCLUDED, cluster=CLUSTER, seed=0, index=None):
    x = units() if x is None else x
    return mixer(x, excluded, cluster, index=index, generator=generator(seed, "mix"))


def members(weights):
    """Weight matrix [B, B] -> for each row the partners, without the row itself."""
    return [[j for j in row.nonzero()[:, 0].tolist() if j != i] for i, row in enumerate(weights)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("lam", EVERY[0])
@pytest.mark.parametrize("partner", EVERY[1])
@pytest.mark.parametrize("label_weights", EVERY[2])
def test_icm_mixes_inputs_and_labels_as_each_option_says(shape, lam, partner, label_weights):
    mixer = ICM(alpha=2.0, partner=partner, lam=lam, label_weights=label_weights)
    mixed, soft = run(mixer, units(shape))
    assert mixed.shape == (BATCH, *shape)
    weights = mixed.flatten(1)
    own = []
    for i, others in enumerate(members(weights)):
        if LONELY[i]:
            assert torch.equal(weights[i], torch.eye(BATCH)[i])
            assert float(soft[i].abs().sum()) == 0
            continue
        assert len(others) == 1 or (partner == "any" and not others)
        j = others[0] if others else i
        assert CLUSTER[i] == CLUSTER[j]
        lam_i = float(weights[i, i]) if others else 1.0
        own += [lam_i] * len(others)
        assert not others or float(weights[i, j]) == pytest.approx(1 - lam_i, abs=1e-6)
        share = {"matched": lam_i, "swapped": 1 - lam_i, "own": 1.0}[label_weights]
        wanted = [share * float(EXCLUDED[i, k]) + (1 - share) * float(EXCLUDED[j, k]) for k in range(CLASSES)]
        if others or label_weights != "swapped":
            np.testing.assert_allclose(soft[i].numpy(), wanted, atol=1e-6)
        assert float(soft[i].sum()) == pytest.approx(1, abs=1e-6)
    assert (np.ptp(own) < 1e-6) == (lam == "batch")


@pytest.mark.parametrize("mixer", [ICM, MICM, Mixup, SameExcluded, IntraClass, ExtraClass])
def test_the_generator_decides_everything(mixer):
    before = torch.random.get_rng_state()
    first, again, other = (run(mixer(alpha=1.0), cluster=TRUTH, seed=s) for s in (3, 3, 4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_inputs_are_not_changed_in_place():
    x, excluded, cluster = units(), EXCLUDED.clone(), TRUTH.clone()
    for mixer in (ICM(alone="black"), MICM(alone="keep"), Mixup(share="hard-label"), ExtraClass()):
        run(mixer, x, excluded, cluster)
    assert torch.equal(x, units())
    assert torch.equal(excluded, EXCLUDED)
    assert torch.equal(cluster, TRUTH)


@pytest.mark.parametrize("mixer", [ICM, MICM])
@pytest.mark.parametrize("share", ["new-data", "soft-label", "hard-label"])
@pytest.mark.parametrize(
    ("alone", "input_kept", "label_kept"), [("skip", True, False), ("keep", True, True), ("black", False, False)]
)
def test_lone_examples_are_skipped_kept_or_blackened(mixer, share, alone, input_kept, label_kept):
    mixed, soft = run(mixer(alone=alone, share=share))
    assert torch.equal(mixed[LONELY], units()[LONELY] * input_kept)
    assert torch.equal(soft[LONELY], EXCLUDED[LONELY] * label_kept)
    assert bool((soft[~LONELY].sum(1) > 0.99).all())


@pytest.mark.parametrize("label_weights", EVERY[2])
def test_soft_label_sharing_keeps_the_input_and_mixes_labels(label_weights):
    mixed, soft = run(ICM(alpha=2.0, share="soft-label", label_weights=label_weights), excluded=torch.eye(BATCH))
    assert torch.equal(mixed, units())
    _, reference = run(ICM(alpha=2.0, label_weights=label_weights), excluded=torch.eye(BATCH))
    assert torch.equal(soft, reference)


@pytest.mark.parametrize(("mixer", "others"), [(ICM, 1), (MICM, 2)])
def test_hard_label_sharing_excludes_every_members_class_fully(mixer, others):
    mixed, soft = run(mixer(share="hard-label"), excluded=torch.eye(BATCH))
    assert torch.equal(mixed, units())
    for i, partners_of in enumerate(members(soft)):
        size = int(SIZE[i])
        assert len(partners_of) == min(others, size - 1)
        assert soft[i].unique().tolist() == ([0.0] if LONELY[i] else [0.0, 1.0])
        assert bool((CLUSTER[partners_of] == CLUSTER[i]).all())


@pytest.mark.parametrize("mixer", [ICM, MICM, Mixup])
def test_label_sets_keep_their_mass_under_mixing(mixer):
    excluded = torch.zeros(BATCH, CLASSES)
    excluded[:, :3] = 1
    excluded = torch.stack([row.roll(i) for i, row in enumerate(excluded)])
    _, soft = run(mixer(alone="keep"), excluded=excluded)
    torch.testing.assert_close(soft.sum(1), torch.full((BATCH,), 3.0))
    _, from_bytes = run(mixer(alone="keep"), excluded=excluded.to(torch.uint8))
    torch.testing.assert_close(from_bytes, soft)


def test_mixup_pairs_the_whole_batch_uniformly_and_needs_no_clusters():
    seen = torch.zeros(BATCH, BATCH)
    for seed in range(150):
        seen += run(Mixup(alpha=5.0), cluster=None, seed=seed)[0] > 0
    assert bool((seen.diagonal() == 150).all())
    others = seen[~torch.eye(BATCH, dtype=torch.bool)]
    assert stats.chisquare(others.numpy()).pvalue > 1e-3


def test_lambda_follows_beta_per_pair():
    x, excluded = torch.eye(2).repeat(4000, 1), torch.eye(2).repeat(4000, 1)
    cluster = torch.arange(4000).repeat_interleave(2)
    mixed, _ = ICM(alpha=0.7)(x, excluded, cluster, generator=generator(0, "lam"))
    own = mixed[torch.arange(8000), torch.arange(8000) % 2].double().numpy()
    assert stats.kstest(own, stats.beta(0.7, 0.7).cdf).pvalue > 0.01


@pytest.mark.parametrize("lam", EVERY[0])
@pytest.mark.parametrize("anchor", ["mixed", "own"])
@pytest.mark.parametrize("constant", [30.0, 0.5])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_micm_weighs_labels_by_inverse_distance(lam, anchor, constant, shape):
    x = torch.randn(BATCH, *shape, generator=generator(1, "x"))
    mixer = MICM(alpha=1.0, lam=lam, anchor=anchor, constant=constant)
    mixed, soft = run(mixer, x)
    weights = run(mixer)[0]  # the same draws on unit vectors show the weights
    points = x.flatten(1).double().numpy()
    for i, others in enumerate(members(weights)):
        size = int(SIZE[i])
        assert len(others) == min(2, size - 1)  # distinct from 3 on; in a pair the other comes twice
        if LONELY[i]:
            continue
        who = [i, *others] if size > 2 else [i, others[0], others[0]]
        point = sum(float(weights[i, j]) * points[j] for j in {i, *others})
        np.testing.assert_allclose(mixed[i].flatten().numpy(), point, atol=1e-5)
        centre = points[i] if anchor == "own" else point
        inverse = []
        for j in who:
            distance = float(np.sqrt(((centre - points[j]) ** 2).sum()))
            inverse.append(1 / (constant if distance == 0 else distance))
        wanted = sum(v / sum(inverse) * EXCLUDED[j].double().numpy() for v, j in zip(inverse, who, strict=True))
        np.testing.assert_allclose(soft[i].numpy(), wanted, atol=1e-3)


def test_micm_weights_are_dirichlet_and_swapping_does_not_apply():
    x = torch.eye(3).repeat(3000, 1)
    cluster = torch.arange(3000).repeat_interleave(3)
    mixed, _ = MICM(alpha=0.7)(x, x, cluster, generator=generator(0, "dir"))
    own = mixed[torch.arange(9000), torch.arange(9000) % 3].double().numpy()
    assert stats.kstest(own, stats.beta(0.7, 1.4).cdf).pvalue > 0.01
    wanted = run(MICM())
    assert all(torch.equal(a, b) for a, b in zip(wanted, run(MICM(label_weights="swapped")), strict=True))


@pytest.mark.parametrize("anchor", ["mixed", "own"])
def test_micm_of_identical_images_stays_finite(anchor):
    _, soft = run(MICM(anchor=anchor), torch.ones(BATCH, 3))
    assert bool(torch.isfinite(soft).all())
    torch.testing.assert_close(soft.sum(1), (~LONELY).float())


@pytest.mark.parametrize("mixer", [ICM, MICM, Mixup])
def test_half_precision_inputs_stay_half_and_close(mixer):
    x = torch.randn(BATCH, 5, generator=generator(2, "x"))
    exact, low = run(mixer(), x), run(mixer(), x.bfloat16())
    assert low[0].dtype == torch.bfloat16
    torch.testing.assert_close(low[0].float(), exact[0], atol=0.05, rtol=0.05)


@pytest.mark.parametrize("mixer", [ICM, MICM, Mixup])
def test_bytes_are_refused_or_mixed_but_never_silently_lost(mixer):
    x = torch.full((BATCH, 4), 200, dtype=torch.uint8)
    try:
        mixed, _ = run(mixer(), x)
    except (UserError, NotImplementedError):
        return
    torch.testing.assert_close(mixed.float(), x.float(), atol=1.5, rtol=0)


# --- the pool ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixer", [ICM, MICM])
def test_a_pool_finds_partners_in_the_whole_set_so_that_nobody_is_alone(mixer):
    everything, labels = torch.eye(BATCH), EXCLUDED
    cluster = torch.arange(BATCH) % 3
    pool = mixing.Pool(mixing.group(cluster), lambda index, source: (everything[index], labels[index]))
    index = torch.tensor([4, 0, 20])
    mixed, soft = run(
        mixer(alpha=2.0, pool=pool), everything[index], labels[index], torch.tensor([0, 1, 2]), index=index
    )
    for i, row in zip(index.tolist(), mixed, strict=True):
        who = row.nonzero()[:, 0]
        assert i in who.tolist()
        assert len(who) == 1 + mixer.others
        assert bool((cluster[who] == cluster[i]).all())
        assert float(row.sum()) == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(soft.sum(1), torch.ones(3))
    if mixer is ICM:
        torch.testing.assert_close(soft, mixed @ labels)


# --- study variants ------------------------------------------------------------------------------


def test_same_excluded_mixes_only_equal_complementary_labels():
    weights, soft = run(SameExcluded(alpha=2.0), cluster=None)
    label = EXCLUDED.argmax(1)
    assert all(label[i] == label[j] for i, others in enumerate(members(weights)) for j in others)
    torch.testing.assert_close(soft, EXCLUDED)


def test_intra_class_mixes_only_the_true_class():
    weights, _ = run(IntraClass(alpha=2.0), cluster=TRUTH)
    found = members(weights)
    assert all(len(others) == 1 for others in found)
    assert all(TRUTH[i] == TRUTH[j] for i, others in enumerate(found) for j in others)


@pytest.mark.parametrize("same_class", [False, True])
def test_extra_class_draws_uniformly_where_no_label_becomes_wrong(same_class):
    named = [set(row.nonzero()[:, 0].tolist()) for row in EXCLUDED]
    seen = torch.zeros(BATCH, BATCH)
    for seed in range(200):
        chosen, found = ExtraClass(same_class=same_class).choose(EXCLUDED, TRUTH, generator=generator(seed, "e"))
        assert bool(found.all())
        seen[torch.arange(BATCH), chosen[:, 0]] += 1
    for i in range(BATCH):
        clean = [j for j in range(BATCH) if int(TRUTH[j]) not in named[i] and int(TRUTH[i]) not in named[j]]
        wanted = [j for j in clean if same_class or TRUTH[j] != TRUTH[i]]
        assert set(seen[i].nonzero()[:, 0].tolist()) <= set(wanted)
        assert stats.chisquare(seen[i, wanted].numpy()).pvalue > 1e-5


def test_extra_class_leaves_out_an_example_without_a_clean_partner():
    truth, excluded = torch.tensor([0, 1]), torch.eye(2).flip(0)
    mixed, soft = ExtraClass()(torch.eye(2), excluded, truth)
    assert torch.equal(mixed, torch.eye(2))
    assert float(soft.sum()) == 0


# --- the registry and bad input ------------------------------------------------------------------


@pytest.mark.parametrize("name", MIXERS)
def test_build_makes_every_mixer_with_its_published_options(name):
    made = mixing.build(name, **AS_CODED.get(name, {}))
    assert made is None if name == "none" else type(made) is MIXERS[name]
    for option, value in AS_CODED.get(name, {}).items():
        assert getattr(made, option) == value


@pytest.mark.parametrize("kind", [ICM, MICM, IntraClass, ExtraClass, GroupMixup])
def test_a_mixer_of_clusters_without_clusters_says_what_to_do(kind):
    with pytest.raises(UserError, match=f"{kind.__name__} mixes inside clusters.*pass the cluster.*or use Mixup"):
        run(kind(), cluster=None)


POOL = mixing.Pool(mixing.group(CLUSTER), lambda index, source: (units()[index], EXCLUDED[index]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ICM(alpha=0), "alpha is 0, but it must be above 0"),
        (lambda: MICM(alpha=-1), "alpha is -1"),
        (lambda: Mixup(alpha=float("nan")), "alpha is nan"),
        (lambda: Mixup(alpha=float("inf")), "alpha is inf"),
        (lambda: mixing.build("mixdown"), "mixer 'mixdown' is not known; choose one of: none, mixup, icm, micm"),
        (lambda: run(ICM(pool=POOL)), "pool needs index"),
        (lambda: run(ExtraClass(pool=POOL), index=torch.arange(BATCH)), "takes no pool; drop it"),
    ],
)
def test_bad_settings_get_one_clear_sentence(call, message):
    with pytest.raises(UserError, match=message):
        call()


@pytest.mark.parametrize("option", ["partner", "lam", "label_weights", "alone", "share", "anchor"])
def test_a_misspelt_option_is_refused_and_not_taken_for_another(option):
    with pytest.raises(UserError, match=r"'mispelt'.*choose one of"):
        MICM(**{option: "mispelt"})
