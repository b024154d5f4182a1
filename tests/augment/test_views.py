"""Views against a slow reference: image by image, with crops, resizing and colors by their definitions."""

import colorsys
import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from complementary.augment.views import NUMBERS, TRIES, Views, crop_boxes, gaussian_blur, resize_rows, shift_hue
from complementary.rng import generator

CPU = torch.device("cpu")
EVERYTHING = Views(flip=0.5, jitter=0.5, grayscale=0.5, blur=0.5, solarize=0.5)
NOTHING = Views(min_scale=1.0, flip=0.0, jitter=0.0, grayscale=0.0)


def make_images(count, channels, height, width, seed=0):
    return torch.randint(
        0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator(seed, "images")
    )


def view(views, images, seed=0):
    drawn = views.draw(len(images), tuple(images.shape[2:]), CPU, generator(seed, "views"))
    return views.apply(images, drawn), drawn


def whole(views, images, **changed):
    """A draw that does not change the images, except for ``changed``."""
    count, _, height, width = images.shape
    drawn = views.draw(count, (height, width), CPU, generator(0, "whole"))
    off, zero, one = torch.zeros(count, dtype=torch.bool), torch.zeros(count), torch.ones(count)
    plain = {"top": zero, "left": zero, "height": height * one, "width": width * one, "hue": zero}
    plain |= dict.fromkeys(("flip", "jitter", "grayscale", "blur", "solarize"), off)
    plain |= dict.fromkeys(("brightness", "contrast", "saturation"), one)
    return drawn._replace(**plain)._replace(**changed)


# --- the slow reference -----------------------------------------------------------------------------


def slow_view(image, draw, i):
    """uint8 [C, H, W] -> float64 [C, H, W], the view of the i-th row of ``draw``."""
    top, left, height, width = (int(v[i]) for v in draw[:4])
    crop = image[:, top : top + height, left : left + width].double() / 255
    assert crop.shape[1:] == (height, width), "the box must lie inside the image"
    x = F.interpolate(crop[None], image.shape[1:], mode="bilinear", align_corners=False)[0].numpy()
    x = x[:, :, ::-1] if draw.flip[i] else x
    if draw.jitter[i]:
        x = slow_jitter(x, *(float(v[i]) for v in (draw.brightness, draw.contrast, draw.saturation, draw.hue)))
    if draw.grayscale[i] and len(x) == 3:
        x = np.stack([slow_gray(x)] * 3)
    if draw.blur[i]:
        x = slow_blur(x, float(draw.sigma[i]))
    return np.where(x < 0.5, x, 1 - x) if draw.solarize[i] else x


def slow_gray(x):
    return 0.299 * x[0] + 0.587 * x[1] + 0.114 * x[2]


def slow_jitter(x, brightness, contrast, saturation, hue):
    x = np.clip(brightness * x, 0, 1)
    mean = (slow_gray(x) if len(x) == 3 else x).mean()
    x = np.clip(contrast * x + (1 - contrast) * mean, 0, 1)
    if len(x) != 3:
        return x
    return slow_hue(np.clip(saturation * x + (1 - saturation) * slow_gray(x), 0, 1), hue)


def slow_hue(x, turn):
    turned = np.empty_like(x)
    for place in np.ndindex(*x.shape[1:]):
        hue, saturation, value = colorsys.rgb_to_hsv(*x[(slice(None), *place)])
        turned[(slice(None), *place)] = colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)
    return turned


def slow_blur(x, sigma):
    """Every output pixel is a sum over all source pixels, divided by the weights that fall inside the image."""
    rows, columns = np.mgrid[: x.shape[1], : x.shape[2]]
    out = np.empty_like(x)
    for i, j in np.ndindex(*x.shape[1:]):
        weight = np.exp(-((rows - i) ** 2 + (columns - j) ** 2) / (2 * sigma**2))
        out[:, i, j] = (x * weight).sum((1, 2)) / weight.sum()
    return out


def assert_as_slow(views, images, seed=0):
    fast, drawn = view(views, images, seed)
    assert fast.dtype == torch.float32
    assert fast.shape == images.shape
    for i, image in enumerate(images):
        np.testing.assert_allclose(fast[i].numpy(), slow_view(image, drawn, i), atol=2e-5)


# --- apply --------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    size=st.tuples(st.integers(1, 4), st.sampled_from([1, 3]), st.integers(1, 9), st.integers(1, 9)),
    min_scale=st.floats(0.01, 1),
    chances=st.tuples(*[st.sampled_from([0.0, 0.5, 1.0])] * 5),
    strength=st.tuples(*[st.floats(0, 1)] * 3, st.floats(0, 0.5)),
    seed=st.integers(0, 10**6),
)
def test_views_equal_a_slow_reference(size, min_scale, chances, strength, seed):
    flip, jitter, grayscale, blur, solarize = chances
    views = Views(min_scale, flip, jitter, strength, grayscale, blur, solarize)
    assert_as_slow(views, make_images(*size, seed), seed)


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 20, 12), (1, 28, 28), (1, 7, 16)], ids=str)
def test_views_with_all_parts_on_square_and_oblong_images(shape):
    assert_as_slow(EVERYTHING, make_images(12, *shape))


@pytest.mark.parametrize("channels", [1, 3])
def test_views_are_between_0_and_1(channels):
    extreme = (255 * (make_images(500, channels, 9, 11) > 90)).to(torch.uint8)
    for images in (extreme, torch.full_like(extreme, 255), torch.zeros_like(extreme)):
        for views in (
            EVERYTHING,
            Views(jitter=0.0, grayscale=0.0),
            Views(jitter=0.0, grayscale=0.0, blur=1.0, solarize=1.0),
        ):
            x, _ = view(views, images)
            assert float(x.min()) >= 0
            assert float(x.max()) <= 1


def test_views_with_all_parts_off_change_nothing():
    images = make_images(50, 3, 32, 32)  # a crop of the whole area fits a square image only if it is the whole image
    x, drawn = view(NOTHING, images)
    assert bool((drawn.height == 32).all())
    assert bool((drawn.width == 32).all())
    torch.testing.assert_close(x, images / 255)


def test_views_with_neutral_factors_change_nothing():
    images = make_images(6, 3, 5, 5)
    x = EVERYTHING.apply(images, whole(EVERYTHING, images, jitter=torch.ones(6, dtype=torch.bool)))
    torch.testing.assert_close(x, images / 255)


def test_views_of_a_one_pixel_crop_have_its_color():
    images = make_images(4, 3, 6, 9)
    top, left, one = torch.tensor([0, 5, 2, 5]), torch.tensor([0, 8, 4, 0]), torch.ones(4)
    box = {"top": top.float(), "left": left.float(), "height": one, "width": one}
    x = NOTHING.apply(images, whole(NOTHING, images, **box))
    color = images[torch.arange(4), :, top, left] / 255
    torch.testing.assert_close(x, color[:, :, None, None].expand(-1, -1, 6, 9).contiguous())


def test_views_have_a_draw_per_image():
    images = make_images(1, 3, 12, 12).expand(64, -1, -1, -1)
    x, drawn = view(EVERYTHING, images)
    assert len(x.flatten(1).unique(dim=0)) == 64
    for i in (0, 5, 63):
        alone = EVERYTHING.apply(images[i : i + 1], type(drawn)(*(v[i : i + 1] for v in drawn)))
        torch.testing.assert_close(alone[0], x[i], atol=1e-6, rtol=0)


def test_views_do_not_change_the_images():
    images = make_images(8, 3, 6, 6)
    before = images.clone()
    view(EVERYTHING, images)
    assert torch.equal(images, before)


def test_views_of_gray_images_ignore_saturation_hue_and_grayscale():
    images = make_images(16, 1, 8, 8)
    base = whole(EVERYTHING, images, jitter=torch.ones(16, dtype=torch.bool), contrast=torch.full((16,), 1.3))
    strange = base._replace(saturation=torch.zeros(16), hue=torch.full((16,), 0.4), grayscale=~base.grayscale)
    assert torch.equal(EVERYTHING.apply(images, base), EVERYTHING.apply(images, strange))
    assert not torch.equal(EVERYTHING.apply(images, base), images / 255)


@pytest.mark.parametrize(
    ("part", "chance"), [(p, c) for p in ("flip", "jitter", "grayscale", "blur", "solarize") for c in (0, 1)]
)
def test_draw_with_probability_0_or_1_is_certain(part, chance):
    _, drawn = view(Views(**{part: float(chance)}), make_images(5000, 1, 4, 4))
    assert bool((getattr(drawn, part) == bool(chance)).all())


# --- draw ---------------------------------------------------------------------------------------------


def test_draw_depends_on_the_generator_only():
    before = torch.random.get_rng_state()
    first, again, other = (view(EVERYTHING, make_images(8, 3, 8, 8), seed)[0] for seed in (3, 3, 4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (3, 17), (32, 32), (33, 5)], ids=str)
@pytest.mark.parametrize("min_scale", [1e-4, 0.2, 1.0])
@pytest.mark.parametrize("extreme", [None, 0.0, 1 - 2**-24])
def test_draw_boxes_are_whole_pixels_inside_the_image(monkeypatch, size, min_scale, extreme):
    """Also if every uniform draw is the min_scale or the largest possible."""
    if extreme is not None:
        monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape, extreme))
    drawn = Views(min_scale=min_scale).draw(3000, size, CPU, generator(0, "boxes"))
    for start, length, limit in ((drawn.top, drawn.height, size[0]), (drawn.left, drawn.width, size[1])):
        assert torch.equal(start, start.round())
        assert torch.equal(length, length.round())
        assert float(start.min()) >= 0
        assert float(length.min()) >= 1
        assert float((start + length).max()) <= limit


def slow_box(uniform, height, width, min_scale):
    """torchvision's RandomResizedCrop, step by step; ``uniform(low, high)`` draws a number."""
    for _ in range(10):
        area = height * width * uniform(min_scale, 1)
        aspect = math.exp(uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return math.floor(uniform(0, height - h + 1)), math.floor(uniform(0, width - w + 1)), h, w
    w, h = width, height
    if width / height < 3 / 4:
        h = round(width / (3 / 4))
    elif width / height > 4 / 3:
        w = round(height * 4 / 3)
    return (height - h) // 2, (width - w) // 2, h, w


SIZES = [(32, 32), (28, 28), (8, 8), (20, 12), (3, 17), (33, 5), (1, 1), (2, 1)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("min_scale", [0.01, 0.2, 0.95, 1.0])
def test_crop_boxes_equal_torchvisions_loop_on_the_same_numbers(size, min_scale):
    u = torch.rand(2 * TRIES + 2, 400, dtype=torch.float64, generator=generator(0, "boxes"))
    found = torch.stack(crop_boxes(u, size, min_scale), dim=1).long().tolist()
    for box, column in zip(found, u.T.tolist(), strict=True):
        tries = iter([v for pair in zip(column[:TRIES], column[TRIES : 2 * TRIES], strict=True) for v in pair])
        drawn = []

        def uniform(low, high, tries=tries, drawn=drawn, place=tuple(column[2 * TRIES :])):
            drawn.append((low, high))
            position = low == 0  # the only interval that begins at 0
            number = place[sum(one == 0 for one, _ in drawn) - 1] if position else next(tries)
            return low + (high - low) * number

        assert tuple(box) == slow_box(uniform, *size, min_scale)


@pytest.mark.parametrize(("size", "min_scale"), [((32, 32), 0.2), ((32, 32), 0.9), ((20, 12), 0.2), ((7, 16), 0.5)])
def test_draw_boxes_are_distributed_as_torchvisions(size, min_scale):
    """A chi-square test of two samples, over heights, widths and corners."""
    count, source = 15000, random.Random(0)
    drawn = Views(min_scale=min_scale).draw(count, size, CPU, generator(1, "boxes"))
    fast = torch.stack(drawn[:4]).long().numpy()
    slow = np.array([slow_box(source.uniform, *size, min_scale) for _ in range(count)]).T
    for rows in ([0], [1], [2], [3], [2, 3]):
        a, b = (np.ravel_multi_index(sample[rows], [40] * len(rows)) for sample in (fast, slow))
        table = np.stack([np.bincount(sample, minlength=40 ** len(rows)) for sample in (a, b)])
        common = table.sum(0) >= 20
        table = np.concatenate([table[:, common], table[:, ~common].sum(1, keepdims=True)], axis=1)
        table = table[:, table.sum(0) > 0]
        if table.shape[1] > 1:
            assert stats.chi2_contingency(table).pvalue > 1e-4, rows


def test_draw_of_cifar_boxes_has_the_mean_area_of_torchvision():
    """An independent simulation gave 0.550; an aspect ratio that is fitted to the area would give 0.601."""
    drawn = Views(min_scale=0.2).draw(100_000, (32, 32), CPU, generator(1, "boxes"))
    assert float((drawn.height * drawn.width).mean()) / 32**2 == pytest.approx(0.550, abs=0.003)
    assert float(((drawn.height == 32) & (drawn.width == 32)).float().mean()) == pytest.approx(0.0024, abs=0.001)


def test_read_is_compiled_without_a_graph_break():
    """`fullgraph` fails on data-dependent control flow and on synchronization."""
    views, u = Views(), torch.rand(NUMBERS, 16, generator=generator(0, "boxes"))
    compiled = torch.compile(views.read, fullgraph=True, backend="eager")
    for found, wanted in zip(compiled(u, (32, 32)), views.read(u, (32, 32)), strict=True):
        torch.testing.assert_close(found, wanted)


def test_draw_is_uniform_over_positions_and_factors():
    drawn = Views(strength=(0.4, 0.3, 0.2, 0.1)).draw(20000, (1000, 1000), CPU, generator(2, "boxes"))
    place = drawn.top / (1000 - drawn.height).clamp_min(1)
    assert stats.kstest(place[drawn.height < 900].double().numpy(), "uniform").pvalue > 1e-4
    for values, low, high in (
        (drawn.brightness, 0.6, 1.4),
        (drawn.contrast, 0.7, 1.3),
        (drawn.saturation, 0.8, 1.2),
        (drawn.hue, -0.1, 0.1),
        (drawn.sigma, 0.1, 2.0),
    ):
        assert stats.kstest(values.double().numpy(), stats.uniform(low, high - low).cdf).pvalue > 1e-3
    for chosen, chance in ((drawn.flip, 0.5), (drawn.jitter, 0.8), (drawn.grayscale, 0.2)):
        assert stats.binomtest(int(chosen.sum()), 20000, chance).pvalue > 1e-3


def test_draw_parts_are_independent():
    drawn = EVERYTHING.draw(20000, (1000, 1000), CPU, generator(3, "boxes"))
    table = torch.stack([v.double() for v in drawn]).corrcoef()
    table[:4, :4] = 0  # a box is drawn as a whole
    table.fill_diagonal_(0)
    assert float(table.abs().max()) < 0.03


# --- the parts by themselves --------------------------------------------------------------------------


def test_resize_rows_have_at_most_two_weights_that_sum_to_1():
    rows = resize_rows(torch.tensor([0.0, 3, 9]), torch.tensor([10.0, 4, 1]), 10)
    torch.testing.assert_close(rows.sum(2), torch.ones(3, 10))
    assert int((rows > 0).sum(2).max()) <= 2
    assert torch.equal(rows[0], torch.eye(10))
    outside = torch.ones(10, dtype=torch.bool)
    outside[3:7] = False
    assert float(rows[1][:, outside].sum()) == 0


@pytest.mark.parametrize("turn", [-0.5, -0.1, 0.0, 1 / 3, 0.37, 1.0])
def test_shift_hue_equals_colorsys(turn):
    levels = torch.tensor([0.0, 0.25, 0.5, 1.0])
    x = torch.cartesian_prod(levels, levels, levels).T.reshape(1, 3, 8, 8)  # ties, grays, black and white among them
    np.testing.assert_allclose(
        shift_hue(x, torch.tensor([turn]))[0].numpy(), slow_hue(x[0].double().numpy(), turn), atol=1e-6
    )


def test_shift_hue_forth_and_back_is_the_identity():
    x = torch.rand(4, 3, 8, 8, generator=generator(0, "hue"))
    turn = torch.tensor([0.1, 0.3, -0.2, 0.5])
    torch.testing.assert_close(shift_hue(shift_hue(x, turn), -turn), x, atol=1e-5, rtol=0)


@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0])
def test_gaussian_blur_is_renormalized_at_the_border(sigma):
    x = torch.rand(1, 2, 9, 6, generator=generator(0, "blur"))
    wanted = slow_blur(x[0].double().numpy(), sigma)
    np.testing.assert_allclose(gaussian_blur(x, torch.tensor([sigma]))[0].numpy(), wanted, atol=1e-6)
    flat = torch.full((1, 1, 9, 6), 0.3)
    torch.testing.assert_close(gaussian_blur(flat, torch.tensor([sigma])), flat)
