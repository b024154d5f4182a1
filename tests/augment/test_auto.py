"""RandAugment, AutoAugment and cutout: operations against Pillow, the published table, and how often each is drawn."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats
from torch.utils._pytree import tree_map

from complementary.augment.auto import (
    CIFAR10,
    POLICIES,
    SIGNED,
    AutoAugment,
    Cutout,
    Operation,
    RandAugment,
    Strong,
    build,
    histogram,
    magnitudes,
    operate,
    smooth,
    tables,
)
from complementary.errors import UserError
from complementary.rng import generator

CPU = torch.device("cpu")
SHAPE = (3, 32, 32)
ENHANCERS = {
    Operation.BRIGHTNESS: ImageEnhance.Brightness,
    Operation.COLOR: ImageEnhance.Color,
    Operation.CONTRAST: ImageEnhance.Contrast,
    Operation.SHARPNESS: ImageEnhance.Sharpness,
}
GEOMETRY = range(Operation.SHEAR_X, Operation.ROTATE + 1)
SHAPES = [(3, 32, 32), (1, 28, 28), (3, 17, 40)]


def make_images(count, channels, height, width, seed=0):
    """Noise, gradients, narrow ranges, few values and a flat image."""
    source = generator(seed, "images")
    x = torch.randint(0, 256, (count, channels, height, width), generator=source)
    ramp = torch.linspace(20, 230, width).expand(channels, height, width)
    kinds = [x[0], ramp.long(), 90 + x[0] // 8, 255 * (x[0] > 180), torch.full_like(x[0], 77)]
    for i in range(count):
        x[i] = kinds[i % 5] if i < 5 else x[i]
    return x.to(torch.uint8)


def pillow(image, operation, magnitude, fill=0):
    """The reference: uint8 [C, H, W] -> uint8 [C, H, W] by Pillow."""
    array = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[:, :, 0] if len(image) == 1 else array)
    done = np.asarray(_pillow(picture, operation, magnitude, (fill,) * len(image)))
    return torch.from_numpy(done.reshape(array.shape).copy()).permute(2, 0, 1)


def _pillow(picture, operation, magnitude, fill):
    def move(*coefficients):
        return picture.transform(picture.size, Image.Transform.AFFINE, coefficients, fillcolor=fill)

    if operation in ENHANCERS:
        return ENHANCERS[operation](picture).enhance(1 + magnitude)
    return {
        Operation.IDENTITY: lambda: picture,
        Operation.SHEAR_X: lambda: move(1, magnitude, 0, 0, 1, 0),
        Operation.SHEAR_Y: lambda: move(1, 0, 0, magnitude, 1, 0),
        Operation.TRANSLATE_X: lambda: move(1, 0, -int(magnitude), 0, 1, 0),
        Operation.TRANSLATE_Y: lambda: move(1, 0, 0, 0, 1, -int(magnitude)),
        Operation.ROTATE: lambda: picture.rotate(magnitude, fillcolor=fill),
        Operation.POSTERIZE: lambda: ImageOps.posterize(picture, int(magnitude)),
        Operation.SOLARIZE: lambda: ImageOps.solarize(picture, magnitude),
        Operation.AUTOCONTRAST: lambda: ImageOps.autocontrast(picture),
        Operation.EQUALIZE: lambda: ImageOps.equalize(picture),
        Operation.INVERT: lambda: ImageOps.invert(picture),
    }[operation]()


def one_operation(images, operation, magnitude, fill=0):
    count = len(images)
    return operate(images, torch.full((count,), int(operation)), torch.full((count,), float(magnitude)), fill)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("operation", Operation)
def test_operate_equals_pillow(operation, shape):
    images = make_images(6, *shape)
    strengths = sorted(set(magnitudes(operation, 11, *shape[1:])))
    for magnitude in strengths + [-m for m in strengths if operation in SIGNED]:
        sloped = operation in (Operation.ROTATE, Operation.SHEAR_X, Operation.SHEAR_Y)
        magnitude = float(np.float32(magnitude * (0.987 if sloped else 1)))  # keeps points off the edges of pixels
        found = one_operation(images, operation, magnitude, fill=9)
        wanted = torch.stack([pillow(image, operation, magnitude, fill=9) for image in images])
        if sloped:  # Pillow counts in 65536ths of a pixel
            assert (found != wanted).any(1).double().mean() < 0.003
        elif operation is Operation.AUTOCONTRAST:
            assert (found.int() - wanted.int()).min() >= 0
            assert (found.int() - wanted.int()).max() <= 1
        else:
            assert torch.equal(found, wanted), (operation, magnitude)


def slow_source(operation, magnitude, x, y, height, width):
    """Source of pixel (x, y); positions are those of centers."""
    x, y = x + 0.5, y + 0.5
    if operation is Operation.SHEAR_X:
        x += magnitude * y
    elif operation is Operation.SHEAR_Y:
        y += magnitude * x
    elif operation is Operation.TRANSLATE_X:
        x -= int(magnitude)
    elif operation is Operation.TRANSLATE_Y:
        y -= int(magnitude)
    elif operation is Operation.ROTATE:  # the image turns left, so the source is to the right
        angle, u, v = math.radians(magnitude), x - width / 2, y - height / 2
        x, y = (
            width / 2 + u * math.cos(angle) - v * math.sin(angle),
            height / 2 + u * math.sin(angle) + v * math.cos(angle),
        )
    return x, y


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(list(GEOMETRY)),
    st.floats(-1, 1, width=32),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from([1, 2, 3]),
    st.integers(0, 255),
)
def test_operate_geometry_equals_a_loop_over_pixels(code, part, height, width, channels, fill):
    operation = Operation(code)
    magnitude = part * magnitudes(operation, 2, height, width)[1]
    image = make_images(1, channels, height, width, seed=code)
    found = one_operation(image, operation, magnitude, fill)[0]
    for y in range(height):
        for x in range(width):
            u, v = slow_source(operation, magnitude, x, y, height, width)
            if min(abs(u - round(u)), abs(v - round(v))) < 1e-4:
                continue
            inside = 0 <= u < width and 0 <= v < height
            wanted = image[0, :, int(v), int(u)].tolist() if inside else [fill] * channels
            assert found[:, y, x].tolist() == wanted


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 9999), st.sampled_from(SHAPES), st.integers(1, 24))
def test_operate_applies_an_operation_per_image(seed, shape, count):
    source = generator(seed, "mixed")
    images = make_images(count, *shape, seed)
    codes = torch.randint(len(Operation), (count,), generator=source)
    signs = torch.randint(2, (count,), generator=source) * 2 - 1
    strength = torch.tensor([magnitudes(Operation(c), 31, *shape[1:])[seed % 31] for c in codes.tolist()])
    strength = torch.where(torch.tensor([c in SIGNED for c in codes.tolist()]), signs * strength, strength)
    found = operate(images, codes, strength, 5)
    assert found.dtype == torch.uint8
    for i in range(count):
        assert torch.equal(found[i], operate(images[i : i + 1], codes[i : i + 1], strength[i : i + 1], 5)[0])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 9999), st.integers(1, 3), st.integers(1, 300), st.integers(1, 256))
def test_histogram_counts(seed, channels, pixels, levels):
    values = torch.randint(levels, (2, channels, pixels), generator=generator(seed, "h")).to(torch.uint8)
    wanted = [[np.bincount(row, minlength=256).tolist() for row in image] for image in values.numpy()]
    assert histogram(values).tolist() == wanted


def test_operate_autocontrast_reaches_black_and_white():
    for low in range(0, 255, 5):
        for high in range(low + 1, 256, 7):
            image = torch.tensor([low, high], dtype=torch.uint8).view(1, 1, 1, 2)
            assert one_operation(image, Operation.AUTOCONTRAST, 0).flatten().tolist() == [0, 255]


def test_operate_autocontrast_and_equalize_keep_flat_and_small_images():
    flat = torch.full((1, 3, 32, 32), 40, dtype=torch.uint8)
    small = make_images(1, 1, 8, 8)
    assert torch.equal(one_operation(flat, Operation.AUTOCONTRAST, 0), flat)
    assert torch.equal(one_operation(flat, Operation.EQUALIZE, 0), flat)
    assert torch.equal(one_operation(small, Operation.EQUALIZE, 0), small)  # 64 pixels cannot fill 256 levels


def test_operate_equalize_flattens_the_distribution():
    narrow = (100 + 20 * torch.randn(1, 1, 256, 256, generator=generator(0, "n"))).clamp(0, 255).to(torch.uint8)
    share = histogram(one_operation(narrow, Operation.EQUALIZE, 0).flatten(2)).view(8, 32).sum(1) / 256**2
    assert (share - 1 / 8).abs().max() < 0.03


@pytest.mark.parametrize("operation", [Operation.COLOR, Operation.SHARPNESS, Operation.BRIGHTNESS, Operation.CONTRAST])
def test_operate_with_magnitude_0_changes_nothing(operation):
    images = make_images(6, 3, 16, 16)
    assert torch.equal(one_operation(images, operation, 0.0), images)


def test_operate_color_does_not_change_gray_images():
    images = make_images(6, 1, 16, 16)
    assert torch.equal(one_operation(images, Operation.COLOR, 0.9), images)


@pytest.mark.parametrize("size", [(1, 1), (2, 5), (5, 2), (3, 3)])
def test_operate_on_tiny_images(size):
    images = make_images(2, 3, *size)
    for operation in Operation:
        assert one_operation(images, operation, 0.3).shape == images.shape
    assert torch.equal(smooth(images)[:, :, 0], images[:, :, 0].float())  # the border stays


def test_tables_of_other_operations_are_the_identity():
    images = make_images(5, 3, 8, 8)
    for operation in (*GEOMETRY, Operation.IDENTITY, Operation.COLOR, Operation.SHARPNESS):
        table = tables(images, torch.full((5,), int(operation)), torch.full((5,), 0.5))
        assert torch.equal(table, torch.arange(256).to(torch.uint8).expand(5, 3, 256))


def test_magnitudes_are_the_published_ranges():
    """31 steps of RandAugment on CIFAR: the ends of every scale, and the strength that is used, 9."""
    ends = {op: (magnitudes(op, 31, 32, 64)[0], magnitudes(op, 31, 32, 64)[-1]) for op in Operation}
    assert ends[Operation.SHEAR_X] == ends[Operation.SHEAR_Y] == (0, 0.3)
    assert ends[Operation.TRANSLATE_X] == (0, pytest.approx(150 / 331 * 64))
    assert ends[Operation.TRANSLATE_Y] == (0, pytest.approx(150 / 331 * 32))
    assert ends[Operation.ROTATE] == (0, 30)
    assert all(ends[op] == (0, 0.9) for op in ENHANCERS)
    assert ends[Operation.POSTERIZE] == (8, 4)
    assert ends[Operation.SOLARIZE] == (255, 0)
    assert magnitudes(Operation.POSTERIZE, 10, 32, 32) == [8, 8, 7, 7, 6, 6, 5, 5, 4, 4]
    assert magnitudes(Operation.ROTATE, 31, 32, 32)[9] == pytest.approx(9)
    assert magnitudes(Operation.SOLARIZE, 31, 32, 32)[9] == pytest.approx(178.5)
    assert set(map(tuple, (magnitudes(op, 4, 9, 9) for op in (0, 12, 13, 14)))) == {(0, 0, 0, 0)}


# --- policies -----------------------------------------------------------------------------------------------------


def random_images(count, channels=3, height=32, width=32, seed=0):
    source = generator(seed, "images")
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=source)


def drawn(policy, count, shape=SHAPE, seed=0):
    return policy.draw(count, shape, CPU, generator(seed, "policy"))


def fair(counts, shares):
    """Whether counts are draws with these shares (chi-squared; one in a million would be refused)."""
    kept = torch.as_tensor(shares, dtype=torch.float64)
    return stats.chisquare(counts, kept / kept.sum() * sum(counts)).pvalue > 1e-6


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
def test_policy_keeps_shape_type_layout_and_input(name, count, channels, height, width, seed, last):
    images = random_images(count, channels, height, width, seed)
    if last:
        images = images.contiguous(memory_format=torch.channels_last)
    before = images.clone()
    found = build(name)(images, generator(seed, "p"))
    assert (found.shape, found.dtype) == (images.shape, torch.uint8)
    assert found.stride() == torch.empty_like(images).stride()
    assert torch.equal(images, before)
    assert torch.equal(found, build(name)(images.contiguous(), generator(seed, "p")))


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "none"])
@pytest.mark.parametrize("channels", [1, 3])
def test_policy_does_not_depend_on_values(name, channels):
    """On meta tensors, a synchronization or a shape that depends on data would raise."""
    images = torch.empty(8, channels, 32, 32, dtype=torch.uint8, device="meta")
    assert build(name, mean=(0.5,) * channels)(images).shape == images.shape


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "none"])
def test_policy_has_a_draw_per_image(name):
    images = random_images(1).expand(64, -1, -1, -1)
    found = build(name)(images, generator(3, "p"))
    assert len(torch.unique(found.flatten(1), dim=0)) > 20


def test_build_policies():
    assert set(POLICIES) == {"none", "cutout", "autoaugment", "randaugment", "strong"}
    assert build("none") is None
    assert build("cutout", mean=(0.4914, 0.4822, 0.4465)) == Cutout(fill=(125, 123, 114))
    assert build("randaugment", mean=(0.5,)) == RandAugment()
    assert build("strong", mean=(0.4914, 0.4822, 0.4465)) == Strong(fill=(125, 123, 114))


def test_strong_policy_is_randaugment_then_cutout():
    images, drawn = random_images(8), Strong().draw(8, (3, 32, 32), torch.device("cpu"), generator(0, "p"))
    wanted = Cutout().apply(RandAugment().apply(images, drawn[0]), drawn[1])
    assert torch.equal(Strong().apply(images, drawn), wanted)
    assert not torch.equal(wanted, images)


def test_unknown_policy_is_refused():
    with pytest.raises(UserError, match="mixup"):
        build("mixup")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cutout(0), "size of Cutout is 0"),
        (lambda: Cutout(fill=256), "fill of Cutout is 256"),
        (lambda: RandAugment(magnitude=31), "magnitude of RandAugment is 31 of 31 bins"),
        (lambda: RandAugment(layers=0), "has 0 layers"),
        (lambda: RandAugment(bins=1, magnitude=0), "of 1 bins"),
        (lambda: Cutout(fill=(1, 2))(random_images(2)), "has 2 levels for 3 channels"),
        (lambda: AutoAugment()(random_images(2).float()), "torch.float32"),
        (lambda: AutoAugment()(random_images(2)[0]), r"torch.uint8 \[3, 32, 32\]"),
    ],
)
def test_policy_rejects_bad_input(make, message):
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in POLICIES if name != "none"])
def test_policy_captured_equals_eager(name):
    from complementary.engine.backend import Captured

    place = torch.device("cuda", 0)
    images, policy = random_images(64).to(place), build(name, mean=(0.5, 0.4, 0.3))
    random = torch.Generator(device=place)
    run = Captured(policy, place)
    for seed in range(8):
        wanted = policy(images, random.manual_seed(seed))
        assert torch.equal(run(images, random.manual_seed(seed)), wanted)
        plan = policy.draw(64, SHAPE, place, random.manual_seed(seed))
        on_cpu = policy.apply(images.cpu(), tree_map(torch.Tensor.cpu, plan))
        assert (wanted.cpu() != on_cpu).double().mean() < 0.002  # sines, rounded otherwise
    assert run.graph is not None


# --- cutout -----------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 20), st.integers(1, 12), st.integers(1, 12), st.integers(0, 999))
def test_cutout_blanks_a_square_around_a_pixel(size, height, width, seed):
    images = random_images(5, 2, height, width, seed)
    policy = Cutout(size, fill=(7, 200))
    middles = policy.draw(5, (2, height, width), CPU, generator(seed, "policy"))
    found = policy.apply(images, middles)
    for i, (row, column) in enumerate(middles.T.tolist()):
        wanted = images[i].clone()
        top, left = row - size // 2, column - size // 2
        hole = wanted[:, max(top, 0) : max(top + size, 0), max(left, 0) : max(left + size, 0)]
        hole[:] = torch.tensor([7, 200])[:, None, None]
        assert torch.equal(found[i], wanted)


def test_cutout_is_half_the_height_and_uniform():
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


def test_randaugment_on_gray_images_has_no_color():
    counts = torch.bincount(drawn(RandAugment(), 20000, (1, 28, 28)).operation.flatten(), minlength=15).tolist()
    assert counts[Operation.COLOR] == counts[Operation.INVERT] == 0
    assert fair([c for c in counts if c], [1 / 13] * 13)


@pytest.mark.parametrize("strength", [0, 9, 30])
def test_randaugment_magnitudes_have_random_signs(strength):
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


def test_autoaugment_table_is_the_published_one():
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


def test_autoaugment_draws_with_the_published_probabilities():
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


def test_autoaugment_magnitudes_are_those_of_the_table():
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
def test_layered_policy_applies_layers_in_order(policy):
    images = random_images(32)
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
