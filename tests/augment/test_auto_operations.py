"""Every operation beside Pillow, one image at a time; geometry also beside a loop over pixels."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from complementary.augment.auto import SIGNED, Operation, histogram, magnitudes, operate, smooth, tables
from complementary.rng import generator

ENHANCERS = {
    Operation.BRIGHTNESS: ImageEnhance.Brightness,
    Operation.COLOR: ImageEnhance.Color,
    Operation.CONTRAST: ImageEnhance.Contrast,
    Operation.SHARPNESS: ImageEnhance.Sharpness,
}
GEOMETRY = range(Operation.SHEAR_X, Operation.ROTATE + 1)
SHAPES = [(3, 32, 32), (1, 28, 28), (3, 17, 40)]


def pictures(count, channels, height, width, seed=0):
    """Noise, gradients, narrow ranges, few values and one flat image: what tables must cope with."""
    source = generator(seed, "pictures")
    x = torch.randint(0, 256, (count, channels, height, width), generator=source)
    ramp = torch.linspace(20, 230, width).expand(channels, height, width)
    kinds = [x[0], ramp.long(), 90 + x[0] // 8, 255 * (x[0] > 180), torch.full_like(x[0], 77)]
    for i in range(count):
        x[i] = kinds[i % 5] if i < 5 else x[i]
    return x.to(torch.uint8)


def pillow(image, operation, magnitude, fill=0):
    """The oracle: uint8 [C, H, W] -> uint8 [C, H, W] by Pillow's own functions."""
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
def test_each_operation_at_each_magnitude_is_pillows(operation, shape):
    images = pictures(6, *shape)
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
    """Where pixel (x, y) comes from, in exact words: positions are those of centres."""
    x, y = x + 0.5, y + 0.5
    if operation is Operation.SHEAR_X:
        x += magnitude * y
    elif operation is Operation.SHEAR_Y:
        y += magnitude * x
    elif operation is Operation.TRANSLATE_X:
        x -= int(magnitude)
    elif operation is Operation.TRANSLATE_Y:
        y -= int(magnitude)
    elif operation is Operation.ROTATE:  # the picture turns left, so the source lies to the right
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
def test_geometry_is_a_loop_over_pixels(code, part, height, width, channels, fill):
    operation = Operation(code)
    magnitude = part * magnitudes(operation, 2, height, width)[1]
    image = pictures(1, channels, height, width, seed=code)
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
def test_each_image_gets_its_own_operation_as_if_it_were_alone(seed, shape, count):
    source = generator(seed, "mixed")
    images = pictures(count, *shape, seed)
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
def test_the_histogram_counts(seed, channels, pixels, levels):
    values = torch.randint(levels, (2, channels, pixels), generator=generator(seed, "h")).to(torch.uint8)
    wanted = [[np.bincount(row, minlength=256).tolist() for row in image] for image in values.numpy()]
    assert histogram(values).tolist() == wanted


def test_autocontrast_reaches_black_and_white():
    for low in range(0, 255, 5):
        for high in range(low + 1, 256, 7):
            image = torch.tensor([low, high], dtype=torch.uint8).view(1, 1, 1, 2)
            assert one_operation(image, Operation.AUTOCONTRAST, 0).flatten().tolist() == [0, 255]


def test_a_flat_image_and_a_small_one_stay_under_autocontrast_and_equalize():
    flat = torch.full((1, 3, 32, 32), 40, dtype=torch.uint8)
    small = pictures(1, 1, 8, 8)
    assert torch.equal(one_operation(flat, Operation.AUTOCONTRAST, 0), flat)
    assert torch.equal(one_operation(flat, Operation.EQUALIZE, 0), flat)
    assert torch.equal(one_operation(small, Operation.EQUALIZE, 0), small)  # 64 pixels cannot fill 256 levels


def test_equalize_flattens_the_distribution_of_a_large_image():
    narrow = (100 + 20 * torch.randn(1, 1, 256, 256, generator=generator(0, "n"))).clamp(0, 255).to(torch.uint8)
    share = histogram(one_operation(narrow, Operation.EQUALIZE, 0).flatten(2)).view(8, 32).sum(1) / 256**2
    assert (share - 1 / 8).abs().max() < 0.03


@pytest.mark.parametrize("operation", [Operation.COLOR, Operation.SHARPNESS, Operation.BRIGHTNESS, Operation.CONTRAST])
def test_no_magnitude_is_no_change(operation):
    images = pictures(6, 3, 16, 16)
    assert torch.equal(one_operation(images, operation, 0.0), images)


def test_color_leaves_grey_pictures_alone():
    images = pictures(6, 1, 16, 16)
    assert torch.equal(one_operation(images, Operation.COLOR, 0.9), images)


@pytest.mark.parametrize("size", [(1, 1), (2, 5), (5, 2), (3, 3)])
def test_tiny_images_pass_every_operation(size):
    images = pictures(2, 3, *size)
    for operation in Operation:
        assert one_operation(images, operation, 0.3).shape == images.shape
    assert torch.equal(smooth(images)[:, :, 0], images[:, :, 0].float())  # the border stays


def test_tables_of_other_operations_are_the_identity():
    images = pictures(5, 3, 8, 8)
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
