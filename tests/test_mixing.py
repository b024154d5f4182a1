"""Partners and mixers.

Mixers are tested from outside: the inputs are unit vectors, so that a mixed row shows the members and their weights.
"""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from complementary import mixing
from complementary.config import AS_CODED, MIXED_WITHIN
from complementary.errors import UserError
from complementary.mixing import ICM, MICM, MIXERS, ExtraClass, IntraClass, Mixup, SameExcluded
from complementary.rng import generator

# --- partners ---------------------------------------------------------------------------------------------------------

IDS = st.lists(st.integers(-5, 5), min_size=1, max_size=40).map(torch.tensor)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(IDS)
def test_group_by_sorts_members_side_by_side(ids):
    order, start, size, rank = mixing.group_by(ids)
    assert sorted(order.tolist()) == list(range(len(ids)))
    for i, own in enumerate(ids.tolist()):
        members = [j for j, other in enumerate(ids.tolist()) if other == own]
        assert order[start[i] : start[i] + size[i]].tolist() == members
        assert int(order[start[i] + rank[i]]) == i


@settings(max_examples=60, deadline=None, derandomize=True)
@given(IDS, st.integers(1, 2), st.booleans(), st.integers(0, 99), st.data())
def test_draw_partners_stays_in_the_group_and_is_distinct_if_possible(ids, count, distinct, seed, data):
    index = torch.tensor(data.draw(st.lists(st.integers(0, len(ids) - 1), min_size=1, max_size=20)))
    groups = mixing.group_by(ids)
    chosen = mixing.draw_partners(groups, index, count, distinct, generator(seed, "p"))
    assert chosen.shape == (len(index), count)
    assert bool((ids[chosen] == ids[index][:, None]).all())
    for i, row in zip(index.tolist(), chosen.tolist(), strict=True):
        size = int((ids == ids[i]).sum())
        if size == 1:
            assert set(row) == {i}
        elif distinct:
            assert i not in row
            assert len(set(row)) == min(count, size - 1)  # in a group of two both partners are the same
    assert torch.equal(chosen, mixing.draw_partners(groups, index, count, distinct, generator(seed, "p")))


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("distinct", [True, False])
def test_draw_partners_is_uniform_over_the_group(size, distinct):
    ids = torch.tensor([9] + [4] * size + [1])
    index = torch.full((7000,), 2)
    chosen = mixing.draw_partners(mixing.group_by(ids), index, 1, distinct, generator(0, "u"))[:, 0]
    wanted = [i for i in range(1, size + 1) if not (distinct and i == 2)]
    counts = Counter(chosen.tolist())
    assert set(counts) == set(wanted)
    assert len(wanted) == 1 or stats.chisquare([counts[i] for i in wanted]).pvalue > 1e-3


@pytest.mark.parametrize("size", [3, 4, 6])
@pytest.mark.parametrize("distinct", [True, False])
def test_draw_partners_of_two_is_uniform_over_ordered_pairs(size, distinct):
    index = torch.full((30_000,), 1)
    chosen = mixing.draw_partners(mixing.group_by(torch.zeros(size)), index, 2, distinct, generator(1, "u"))
    pairs = Counter(map(tuple, chosen.tolist()))
    wanted = [(a, b) for a in range(size) for b in range(size) if not distinct or len({a, b, 1}) == 3]
    assert set(pairs) == set(wanted)
    assert stats.chisquare([pairs[w] for w in wanted]).pvalue > 1e-3


def test_draw_partners_not_distinct_gives_the_protocols_share_of_self_mixes():
    wanted = 50 * (1 - (1 - 1 / 50) ** 512) / 512  # one in each non-empty cluster: the protocol's 9.8 %
    assert wanted == pytest.approx(0.098, abs=5e-4)
    own = torch.zeros(200)
    for turn in range(200):
        source = generator(turn, "self")
        groups = mixing.group_by(torch.randint(50, (512,), generator=source))
        mine = torch.arange(512)
        own[turn] = (mixing.draw_partners(groups, mine, 1, False, source)[:, 0] == mine).float().mean()
    assert float(own.mean()) == pytest.approx(wanted, abs=0.003)


def test_draw_partners_stays_in_the_group_for_uniform_numbers_near_one(monkeypatch):
    almost = 1 - 2**-24
    monkeypatch.setattr(torch, "rand", lambda *shape, device, generator: torch.full(shape, almost))
    ids = torch.zeros(1000, dtype=torch.long)
    index = torch.arange(1000)
    both = mixing.draw_partners(mixing.group_by(ids), index, 2, True)
    assert torch.equal(both[:, 0], (index - 1) % 1000)
    assert torch.equal(both[:, 1], (index - 2) % 1000)
    assert torch.equal(mixing.draw_partners(mixing.group_by(ids), index, 1, False)[:, 0], (index - 1) % 1000)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 12), st.integers(0, 999))
def test_pick_allowed_finds_only_allowed_partners(size, seed):
    source = generator(seed, "w")
    allowed = torch.rand(size, size, generator=source) < 0.3
    chosen, found = mixing.pick_allowed(allowed, torch.rand(size, size, generator=source))
    assert torch.equal(found, allowed.any(1))
    rows = torch.arange(size)
    assert bool((allowed[rows, chosen] | ~found).all())
    assert bool(((chosen >= 0) & (chosen < size)).all())


def test_pick_allowed_is_uniform():
    row = torch.tensor([True, False, True, True, False])
    chosen, _ = mixing.pick_allowed(row.expand(9000, 5), torch.rand(9000, 5, generator=generator(4, "w")))
    counts = torch.bincount(chosen, minlength=5).tolist()
    assert counts[1] == counts[4] == 0
    assert stats.chisquare([counts[0], counts[2], counts[3]]).pvalue > 1e-3


# --- mixers -----------------------------------------------------------------------------------------------------------

BATCH, CLASSES = 24, 6
CLUSTER = torch.tensor([7] * 9 + [2] * 8 + [0] * 3 + [5] * 2 + [1, 9])  # the last two have no partner
SIZE = torch.bincount(CLUSTER)[CLUSTER]
ALONE = SIZE == 1
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
def test_icm_options_determine_weights_of_inputs_and_labels(shape, lam, partner, label_weights):
    mixer = ICM(alpha=2.0, partner=partner, lam=lam, label_weights=label_weights)
    mixed, soft = run(mixer, units(shape))
    assert mixed.shape == (BATCH, *shape)
    weights = mixed.flatten(1)
    own = []
    for i, others in enumerate(members(weights)):
        if ALONE[i]:
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
def test_mixer_depends_on_the_generator_only(mixer):
    before = torch.random.get_rng_state()
    first, again, other = (run(mixer(alpha=1.0), cluster=TRUTH, seed=s) for s in (3, 3, 4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_choose_is_stable():
    # a change would silently change every published run
    first = [8, 2, 5, 6, 0, 7, 0, 0, 0, 11, 12, 14, 15, 14, 13, 11, 11, 19, 17, 18, 21, 20, 22, 23]
    second = [3, 5, 8, 4, 7, 6, 4, 8, 6, 10, 15, 12, 13, 16, 10, 14, 12, 18, 19, 17, 21, 20, 22, 23]
    for mixer, wanted in ((ICM(), [first]), (MICM(), [first, second])):
        chosen, found = mixer.choose(EXCLUDED, CLUSTER, generator=generator(0, "golden"))
        assert chosen.T.tolist() == wanted
        assert torch.equal(found, ~ALONE)


def test_mixer_does_not_change_its_inputs():
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
def test_alone_skips_keeps_or_blackens_examples_without_a_partner(mixer, share, alone, input_kept, label_kept):
    mixed, soft = run(mixer(alone=alone, share=share))
    assert torch.equal(mixed[ALONE], units()[ALONE] * input_kept)
    assert torch.equal(soft[ALONE], EXCLUDED[ALONE] * label_kept)
    assert bool((soft[~ALONE].sum(1) > 0.99).all())


@pytest.mark.parametrize("label_weights", EVERY[2])
def test_share_soft_label_keeps_the_input_and_mixes_labels(label_weights):
    mixed, soft = run(ICM(alpha=2.0, share="soft-label", label_weights=label_weights), excluded=torch.eye(BATCH))
    assert torch.equal(mixed, units())
    _, reference = run(ICM(alpha=2.0, label_weights=label_weights), excluded=torch.eye(BATCH))
    assert torch.equal(soft, reference)


@pytest.mark.parametrize(("mixer", "others"), [(ICM, 1), (MICM, 2)])
def test_share_hard_label_excludes_the_classes_of_all_members(mixer, others):
    mixed, soft = run(mixer(share="hard-label"), excluded=torch.eye(BATCH))
    assert torch.equal(mixed, units())
    for i, partners_of in enumerate(members(soft)):
        size = int(SIZE[i])
        assert len(partners_of) == min(others, size - 1)
        assert soft[i].unique().tolist() == ([0.0] if ALONE[i] else [0.0, 1.0])
        assert bool((CLUSTER[partners_of] == CLUSTER[i]).all())


@pytest.mark.parametrize("mixer", [ICM, MICM, Mixup])
def test_mixer_keeps_the_total_weight_of_several_labels(mixer):
    excluded = torch.zeros(BATCH, CLASSES)
    excluded[:, :3] = 1
    excluded = torch.stack([row.roll(i) for i, row in enumerate(excluded)])
    _, soft = run(mixer(alone="keep"), excluded=excluded)
    torch.testing.assert_close(soft.sum(1), torch.full((BATCH,), 3.0))
    _, from_bytes = run(mixer(alone="keep"), excluded=excluded.to(torch.uint8))
    torch.testing.assert_close(from_bytes, soft)


def test_mixup_pairs_the_whole_batch_uniformly_without_clusters():
    seen = torch.zeros(BATCH, BATCH)
    for seed in range(150):
        seen += run(Mixup(alpha=5.0), cluster=None, seed=seed)[0] > 0
    assert bool((seen.diagonal() == 150).all())
    others = seen[~torch.eye(BATCH, dtype=torch.bool)]
    assert stats.chisquare(others.numpy()).pvalue > 1e-3


def test_icm_lambda_follows_beta_per_pair():
    x, excluded = torch.eye(2).repeat(4000, 1), torch.eye(2).repeat(4000, 1)
    cluster = torch.arange(4000).repeat_interleave(2)
    mixed, _ = ICM(alpha=0.7)(x, excluded, cluster, generator=generator(0, "lam"))
    own = mixed[torch.arange(8000), torch.arange(8000) % 2].double().numpy()
    assert stats.kstest(own, stats.beta(0.7, 0.7).cdf).pvalue > 0.01


@pytest.mark.parametrize("lam", EVERY[0])
@pytest.mark.parametrize("anchor", ["mixed", "own"])
@pytest.mark.parametrize("constant", [30.0, 0.5])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_micm_weights_labels_by_inverse_distance(lam, anchor, constant, shape):
    x = torch.randn(BATCH, *shape, generator=generator(1, "x"))
    mixer = MICM(alpha=1.0, lam=lam, anchor=anchor, constant=constant)
    mixed, soft = run(mixer, x)
    weights = run(mixer)[0]  # the same draws on unit vectors show the weights
    points = x.flatten(1).double().numpy()
    for i, others in enumerate(members(weights)):
        size = int(SIZE[i])
        assert len(others) == min(2, size - 1)  # in a group of two both partners are the same
        if ALONE[i]:
            continue
        who = [i, *others]  # in a group of two the label of the partner counts once
        point = sum(float(weights[i, j]) * points[j] for j in {i, *others})
        np.testing.assert_allclose(mixed[i].flatten().numpy(), point, atol=1e-5)
        center = points[i] if anchor == "own" else point
        inverse = []
        for j in who:
            distance = float(np.sqrt(((center - points[j]) ** 2).sum()))
            inverse.append(1 / (constant if distance == 0 else distance))
        wanted = sum(v / sum(inverse) * EXCLUDED[j].double().numpy() for v, j in zip(inverse, who, strict=True))
        np.testing.assert_allclose(soft[i].numpy(), wanted, atol=1e-3)


def test_micm_weights_are_dirichlet_and_ignore_label_weights():
    x = torch.eye(3).repeat(3000, 1)
    cluster = torch.arange(3000).repeat_interleave(3)
    mixed, _ = MICM(alpha=0.7)(x, x, cluster, generator=generator(0, "dir"))
    own = mixed[torch.arange(9000), torch.arange(9000) % 3].double().numpy()
    assert stats.kstest(own, stats.beta(0.7, 1.4).cdf).pvalue > 0.01
    wanted = run(MICM())
    assert all(torch.equal(a, b) for a, b in zip(wanted, run(MICM(label_weights="swapped")), strict=True))


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.4, 3.0])
@pytest.mark.parametrize("shape", [(2,), (3, 32, 32)], ids=str)
def test_micm_distances_are_exact_however_small_alpha_is(alpha, shape):
    """Against float64. In float32 the mixed point often equals a member, whose label must then have all the weight."""
    count = 3000
    x = torch.randn(3, *shape, generator=generator(0, "x"))
    cluster, excluded = torch.zeros(count, dtype=torch.long), torch.eye(3).repeat(count // 3, 1)
    mixer = MICM(alpha=alpha)
    draw = mixer.draw(count, x.device, generator(0, "micm"))
    chosen, _ = mixer.pick(excluded, cluster, None, draw.partner)
    inputs = [x[who % 3] for who in (torch.arange(count), *chosen.unbind(1))]
    weight = draw.weight.double()
    points = torch.stack(inputs, 1).flatten(2).double()  # [N, 3, D]
    others = (1 - torch.eye(3)).double()
    # m - x_i = sum_j w_j (x_j - x_i): no difference of nearly equal points
    toward = torch.stack([(weight[:, :, None] * (points - points[:, i : i + 1])).sum(1) for i in range(3)], 1)
    distance = toward.norm(dim=2).clamp_min(1e-12)
    same = ((points[:, :, None] - points[:, None]).norm(dim=3) * others).sum(2) == 0
    inverse = 1 / torch.where(same, 30.0, distance)
    _, found = mixer.weights(inputs, draw.weight, chosen)
    torch.testing.assert_close(found.double(), inverse / inverse.sum(1, keepdim=True), atol=2e-3, rtol=0)
    if alpha <= 0.1:
        sure = weight.amax(1) > 1 - 1e-9
        assert int(sure.sum()) > 5
        apart = (points[:, 0] != points[:, 1]).any(1) & (points[:, 0] != points[:, 2]).any(1)
        apart &= (points[:, 1] != points[:, 2]).any(1)
        assert float(found[sure & apart].amax(1).min()) > 0.999


def test_micm_in_a_group_of_two_is_icm():
    x, excluded = torch.randn(2, 5, generator=generator(0, "x")), torch.eye(2)
    mixer, cluster = MICM(), torch.zeros(2, dtype=torch.long)
    draw = mixer.draw(2, x.device, generator(0, "two"))
    mixed, soft = mixer.apply(x, excluded, cluster, draw)
    own = draw.weight[:, :1]
    torch.testing.assert_close(mixed, own * x + (1 - own) * x.flip(0))
    torch.testing.assert_close(soft, own * excluded + (1 - own) * excluded.flip(0))


@pytest.mark.parametrize("anchor", ["mixed", "own"])
def test_micm_of_identical_images_stays_finite(anchor):
    _, soft = run(MICM(anchor=anchor), torch.ones(BATCH, 3))
    assert bool(torch.isfinite(soft).all())
    torch.testing.assert_close(soft.sum(1), (~ALONE).float())


@pytest.mark.parametrize("mixer", [ICM, MICM, Mixup])
def test_mixer_keeps_half_precision(mixer):
    x = torch.randn(BATCH, 5, generator=generator(2, "x"))
    exact, low = run(mixer(), x), run(mixer(), x.bfloat16())
    assert low[0].dtype == torch.bfloat16
    torch.testing.assert_close(low[0].float(), exact[0], atol=0.05, rtol=0.05)


@pytest.mark.parametrize("mixer", [ICM, MICM, Mixup])
def test_mixer_rejects_integer_inputs(mixer):
    with pytest.raises(UserError, match="uint8"):
        run(mixer(), torch.full((BATCH, 4), 200, dtype=torch.uint8))


# --- the pool ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixer", [ICM, MICM])
def test_pool_provides_partners_from_the_whole_training_set(mixer):
    everything, labels = torch.eye(BATCH), EXCLUDED
    cluster = torch.arange(BATCH) % 3
    pool = mixing.Pool(mixing.group_by(cluster), lambda index, source: (everything[index], labels[index]))
    index = torch.tensor([4, 0, 20])
    mixed, soft = run(
        mixer(alpha=2.0, pool=pool), everything[index], labels[index], torch.tensor([0, 1, 2]), index=index
    )
    for i, row in zip(index.tolist(), mixed, strict=True):
        who = row.nonzero()[:, 0]
        assert i in who.tolist()
        assert len(who) == 1 + mixer.partner_count
        assert bool((cluster[who] == cluster[i]).all())
        assert float(row.sum()) == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(soft.sum(1), torch.ones(3))
    if mixer is ICM:
        torch.testing.assert_close(soft, mixed @ labels)


# --- study variants ---------------------------------------------------------------------------------------------------


def test_same_excluded_mixes_equal_complementary_labels():
    weights, soft = run(SameExcluded(alpha=2.0), cluster=None)
    label = EXCLUDED.argmax(1)
    assert all(label[i] == label[j] for i, others in enumerate(members(weights)) for j in others)
    torch.testing.assert_close(soft, EXCLUDED)


def test_intra_class_mixes_within_the_true_class():
    weights, _ = run(IntraClass(alpha=2.0), cluster=TRUTH)
    found = members(weights)
    assert all(len(others) == 1 for others in found)
    assert all(TRUTH[i] == TRUTH[j] for i, others in enumerate(found) for j in others)


@pytest.mark.parametrize("same_class", [False, True])
def test_extra_class_is_uniform_over_partners_without_wrong_labels(same_class):
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


def test_extra_class_skips_an_example_without_an_allowed_partner():
    truth, excluded = torch.tensor([0, 1]), torch.eye(2).flip(0)
    mixed, soft = ExtraClass()(torch.eye(2), excluded, truth)
    assert torch.equal(mixed, torch.eye(2))
    assert float(soft.sum()) == 0


# --- the registry and bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MIXERS)
def test_build_accepts_the_published_options_of_every_mixer(name):
    made = mixing.build(name, **AS_CODED.get(name, {}))
    assert made is None if name == "none" else type(made) is MIXERS[name]
    for option, value in AS_CODED.get(name, {}).items():
        assert getattr(made, option) == value


@pytest.mark.parametrize("name", [name for name in MIXERS if name != "none"])
def test_mixer_needs_clusters_if_mixed_within_says_so(name):
    if MIXED_WITHIN[name] == "nothing":
        first, second = (run(MIXERS[name](), cluster=cluster)[0] for cluster in (None, CLUSTER))
        assert torch.equal(first, second)
    else:
        with pytest.raises(UserError, match=f"{MIXERS[name].__name__} .*cluster"):
            run(MIXERS[name](), cluster=None)


POOL = mixing.Pool(mixing.group_by(CLUSTER), lambda index, source: (units()[index], EXCLUDED[index]))


@pytest.mark.parametrize(
    ("call", "found", "option"),
    [
        (lambda: ICM(alpha=0), "0", "alpha"),
        (lambda: MICM(alpha=-1), "-1", "alpha"),
        (lambda: Mixup(alpha=float("nan")), "nan", "alpha"),
        (lambda: Mixup(alpha=float("inf")), "inf", "alpha"),
        (lambda: mixing.build("mixdown"), "'mixdown'", "mix"),
        (lambda: run(ICM(pool=POOL)), "index", None),
        (lambda: run(ExtraClass(pool=POOL), index=torch.arange(BATCH)), "extra-class", "partners_from"),
    ],
)
def test_mixer_errors_name_value_and_option(call, found, option):
    with pytest.raises(UserError, match=found) as caught:
        call()
    assert caught.value.option == option


@pytest.mark.parametrize("option", ["partner", "lam", "label_weights", "alone", "share", "anchor"])
def test_mixer_rejects_unknown_choices(option):
    with pytest.raises(UserError, match="'misspelled'") as caught:
        MICM(**{option: "misspelled"})
    assert caught.value.option == option


def test_mixers_refuse_arrays_and_lengths_that_differ():
    x, excluded, cluster = torch.rand(4, 3), torch.eye(4), torch.zeros(4, dtype=torch.long)
    for arguments, name in (((x.numpy(), excluded, cluster), "x"), ((x, excluded, cluster.numpy()), "cluster")):
        with pytest.raises(UserError, match=f"{name} is a ndarray, not a tensor"):
            mixing.ICM()(*arguments)
    with pytest.raises(UserError, match="lengths differ: x 4, excluded 4, cluster 3"):
        mixing.ICM()(x, excluded, cluster[:3])
