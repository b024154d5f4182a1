"""Policies beside Pillow image by image, the published table, and how often each thing is drawn."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from complementary.augment.auto import (
    CIFAR10,
    POLICIES,
    SIGNED,
    AutoAugment,
    Cutout,
    Draw,
    Operation,
    RandAugment,
    build,
    magnitudes,
    operate,
)
from complementary.errors import UserError
from complementary.rng import generator

CPU = torch.device("cpu")
SHAPE = (3, 32, 32)


def pictures(count, channels=3, height=32, width=32, seed=0):
    source = generator(seed, "pictures")
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=source)


def drawn(policy, count, shape=SHAPE, seed=0):
    return policy.draw(count, shape, CPU, generator(seed, "policy"))


def fair(counts, shares):
    """Whether counts are draws with these shares (chi-squared; one in a million would be refused)."""
    kept = torch.as_tensor(shares, dtype=torch.float64)
    return stats.chisquare(counts, kept / kept.sum() * sum(counts)).pvalue > 1e-6


# --- every policy -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "none"])
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    st.integers(1, 20),
    st.sampled_from([1, 3]),
    st.integers(2, 34),
    st.integers(2, 34),
    st.integers(0, 999),
    st.booleans(),
)
def test_shape_type_layout_and_input_are_kept(name, count, channels, height, width, seed, last):
    images = pictures(count, channels, height, width, seed)
    if last:
        images = images.contiguous(memory_format=torch.channels_last)
    before = images.clone()
    found = build(name)(images, generator(seed, "p"))
    assert (found.shape, found.dtype) == (images.shape, torch.uint8)
    assert found.stride() == torch.empty_like(images).stride()
    assert torch.equal(images, before)
    assert torch.equal(found, build(name)(images.contiguous(), generator(seed, "p")))  # the seed decides, nothing else


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "none"])
@pytest.mark.parametrize("channels", [1, 3])
def test_nothing_depends_on_values(name, channels):
    """On tensors without values any wait for the device, any shape that depends on data, would raise."""
    images = torch.empty(8, channels, 32, 32, dtype=torch.uint8, device="meta")
    assert build(name, mean=(0.5,) * channels)(images).shape == images.shape


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "none"])
def test_each_image_has_its_own_draw(name):
    images = pictures(1).expand(64, -1, -1, -1)
    found = build(name)(images, generator(3, "p"))
    assert len(torch.unique(found.flatten(1), dim=0)) > 20


def test_the_registry():
    assert list(POLICIES) == ["none", "cutout", "autoaugment", "randaugment"]
    assert build("none") is None
    assert build("cutout", mean=(0.4914, 0.4822, 0.4465)) == Cutout(fill=(125, 123, 114))
    assert build("randaugment", mean=(0.5,)) == RandAugment()
    with pytest.raises(UserError, match="augmentation 'mixup' is not known; choose one of: none, cutout"):
        build("mixup")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cutout(0), "size of Cutout is 0"),
        (lambda: Cutout(fill=256), "fill of Cutout is 256"),
        (lambda: RandAugment(magnitude=31), "magnitude of RandAugment is 31 of 31 bins"),
        (lambda: RandAugment(layers=0), "has 0 layers"),
        (lambda: RandAugment(bins=1, magnitude=0), "of 1 bins"),
        (lambda: Cutout(fill=(1, 2))(pictures(2)), "has 2 levels for 3 channels"),
        (lambda: AutoAugment()(pictures(2).float()), "needs uint8 images .* found torch.float32"),
        (lambda: AutoAugment()(pictures(2)[0]), r"found torch.uint8 \[3, 32, 32\]"),
    ],
)
def test_bad_input_is_a_sentence(make, message):
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in POLICIES if name != "none"])
def test_a_captured_policy_is_the_eager_one(name):
    from complementary.engine.backend import Captured

    place = torch.device("cuda", 0)
    images, policy = pictures(64).to(place), build(name, mean=(0.5, 0.4, 0.3))
    random = torch.Generator(device=place)
    run = Captured(policy, place)
    for seed in range(8):
        wanted = policy(images, random.manual_seed(seed))
        assert torch.equal(run(images, random.manual_seed(seed)), wanted)
        plan = policy.draw(64, SHAPE, place, random.manual_seed(seed))
        on_cpu = Draw(*(part.cpu() for part in plan)) if isinstance(plan, Draw) else plan.cpu()
        assert (wanted.cpu() != policy.apply(images.cpu(), on_cpu)).double().mean() < 0.002  # sines, rounded otherwise
    assert run.graph is not None


# --- cutout -----------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 20), st.integers(1, 12), st.integers(1, 12), st.integers(0, 999))
def test_cutout_blanks_a_square_around_a_pixel(size, height, width, seed):
    images = pictures(5, 2, height, width, seed)
    policy = Cutout(size, fill=(7, 200))
    middles = policy.draw(5, (2, height, width), CPU, generator(seed, "policy"))
    found = policy.apply(images, middles)
    for i, (row, column) in enumerate(middles.T.tolist()):
        wanted = images[i].clone()
        top, left = row - size // 2, column - size // 2
        hole = wanted[:, max(top, 0) : max(top + size, 0), max(left, 0) : max(left + size, 0)]
        hole[:] = torch.tensor([7, 200])[:, None, None]
        assert torch.equal(found[i], wanted)


def test_cutout_is_half_the_height_by_default_and_centred_anywhere():
    white = torch.full((4000, 1, 32, 32), 255, dtype=torch.uint8)
    found = Cutout()(white, generator(0, "c"))
    gone = (found == 0).sum((1, 2, 3))
    assert int(gone.max()) == 16 * 16
    assert int(gone.min()) == 8 * 8  # a square in the corner of which a quarter is left
    middles = drawn(Cutout(), 4000)
    assert fair(torch.bincount(middles[0], minlength=32).tolist(), [1 / 32] * 32)
    assert fair(torch.bincount(middles[1], minlength=32).tolist(), [1 / 32] * 32)


# --- RandAugment ------------------------------------------------------------------------------------


def test_randaugment_draws_its_fourteen_operations_equally_often():
    plan = drawn(RandAugment(layers=3), 20000)
    assert plan.operation.shape == plan.magnitude.shape == (3, 20000)
    counts = torch.bincount(plan.operation.flatten(), minlength=15).tolist()
    assert counts[Operation.INVERT] == 0
    assert fair(counts[:14], [1 / 14] * 14)
    pairs = torch.bincount(15 * plan.operation[0] + plan.operation[1], minlength=225).view(15, 15)[:14, :14]
    assert fair(pairs.flatten().tolist(), [1 / 196] * 196)  # layers are independent


def test_randaugment_on_grey_images_leaves_color_out():
    counts = torch.bincount(drawn(RandAugment(), 20000, (1, 28, 28)).operation.flatten(), minlength=15).tolist()
    assert counts[Operation.COLOR] == counts[Operation.INVERT] == 0
    assert fair([c for c in counts if c], [1 / 13] * 13)


@pytest.mark.parametrize("strength", [0, 9, 30])
def test_randaugments_magnitudes_are_the_tables_with_a_fair_sign(strength):
    plan = drawn(RandAugment(magnitude=strength), 20000)
    for operation in Operation:
        found = plan.magnitude[plan.operation == operation]
        wanted = magnitudes(operation, 31, 32, 32)[strength]
        assert torch.allclose(found.abs(), torch.tensor(wanted))
        if operation in SIGNED and wanted:
            assert fair([int((found < 0).sum()), int((found > 0).sum())], [0.5, 0.5])
        else:
            assert bool((found >= 0).all())


# --- AutoAugment ------------------------------------------------------------------------------------


def test_the_table_of_sub_policies():
    """Spot checks of the published table, and its sums, which were added up by hand."""
    assert len(CIFAR10) == 25
    assert CIFAR10[0] == ((Operation.INVERT, 0.1, 0), (Operation.CONTRAST, 0.2, 6))
    assert CIFAR10[3] == ((Operation.SHEAR_Y, 0.5, 8), (Operation.TRANSLATE_Y, 0.7, 9))
    assert CIFAR10[14] == ((Operation.SOLARIZE, 0.5, 2), (Operation.INVERT, 0.0, 0))
    assert CIFAR10[24] == ((Operation.TRANSLATE_Y, 0.7, 9), (Operation.AUTOCONTRAST, 0.9, 0))
    steps = [step for pair in CIFAR10 for step in pair]
    assert round(sum(chance for _, chance, _ in steps), 3) == 26.5
    assert sum(bin for _, _, bin in steps) == 187
    counted = {op.name.lower(): sum(step[0] is op for step in steps) for op in Operation}
    assert counted == COUNTED
    without = (Operation.AUTOCONTRAST, Operation.EQUALIZE, Operation.INVERT)
    assert all(bin == 0 for op, _, bin in steps if op in without)


COUNTED = {
    "identity": 0,
    "shear_x": 0,
    "shear_y": 2,
    "translate_x": 2,
    "translate_y": 5,
    "rotate": 1,
    "brightness": 4,
    "color": 5,
    "contrast": 2,
    "sharpness": 5,
    "posterize": 1,
    "solarize": 4,
    "autocontrast": 7,
    "equalize": 9,
    "invert": 3,
}


def test_autoaugment_draws_sub_policies_equally_and_their_operations_with_their_probabilities():
    plan = drawn(AutoAugment(), 60000)
    for layer in range(2):
        shares = torch.zeros(15, dtype=torch.float64)
        for pair in CIFAR10:
            operation, chance, _ = pair[layer]
            shares[operation] += chance / 25
            shares[Operation.IDENTITY] += (1 - chance) / 25
        counts = torch.bincount(plan.operation[layer], minlength=15)
        assert counts[shares == 0].sum() == 0
        assert fair(counts[shares > 0].tolist(), shares[shares > 0])


def test_autoaugment_pairs_come_from_one_sub_policy():
    plan = drawn(AutoAugment(), 20000)
    allowed = {(a[0], b[0]) for a, b in CIFAR10}
    both = {(x, y) for x, y in plan.operation.T.tolist() if x and y}
    assert both <= allowed
    never = {(a[0], b[0]) for a, b in CIFAR10 if a[1] * b[1] == 0}
    assert both == allowed - never


def test_autoaugments_magnitudes_are_those_of_the_table():
    plan = drawn(AutoAugment(), 20000)
    for operation in Operation:
        bins = {bin for pair in CIFAR10 for op, _, bin in pair if op is operation}
        wanted = {round(magnitudes(operation, 10, 32, 32)[bin], 4) for bin in bins}
        wanted |= {-m for m in wanted if operation in SIGNED}
        if bins:
            found = plan.magnitude[plan.operation == operation]
            assert {round(m, 4) for m in found.tolist()} == wanted


# --- layers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [RandAugment(layers=3, fill=(1, 2, 3)), AutoAugment(fill=(1, 2, 3))])
def test_layers_follow_one_another(policy):
    images = pictures(32)
    plan = drawn(policy, 32)
    wanted = images
    fill = torch.tensor([1, 2, 3], dtype=torch.uint8)[:, None, None]
    for operation, magnitude in zip(plan.operation, plan.magnitude, strict=True):
        wanted = torch.cat(
            [operate(wanted[i : i + 1], operation[i : i + 1], magnitude[i : i + 1], fill) for i in range(32)]
        )
    assert torch.equal(policy.apply(images, plan), wanted)
    assert torch.equal(policy(images, generator(0, "policy")), wanted)
    assert not torch.equal(dataclasses.replace(policy, fill=0).apply(images, plan), wanted)
