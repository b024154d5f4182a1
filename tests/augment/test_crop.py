"""Crop and flip against numpy.pad, normalization, luminance."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import stats

from complementary.augment.crop import CropAndFlip, default_padding, luminance, normalize
from complementary.rng import generator


def make_images(count, channels, height, width, seed=0):
    return torch.randint(256, (count, channels, height, width), dtype=torch.uint8, generator=generator(seed, "img"))


def augmented(augment, images, index, source=None):
    return augment.apply(images, index, augment.draw(len(index), index.device, source))


def crop(image, padding, down, right, flip):
    """Pad by reflection, crop a window shifted by (down, right), flip. image [C, H, W]."""
    _, height, width = image.shape
    padded = np.pad(image, [(0, 0), (padding, padding), (padding, padding)], mode="reflect")
    top, left = padding + down, padding + right
    window = padded[:, top : top + height, left : left + width]
    return window[:, :, ::-1] if flip else window


def find(output, image, padding):
    """Every (down, right, flip) whose reference crop is the output."""
    moves = range(-padding, padding + 1)
    return [
        (down, right, flip)
        for down in moves
        for right in moves
        for flip in (False, True)
        if np.array_equal(output, crop(image, padding, down, right, flip))
    ]


@pytest.mark.parametrize(("channels", "height", "width"), [(3, 32, 32), (1, 28, 28), (2, 9, 6)])
@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("flip", [False, True])
def test_crop_and_flip_is_a_reflected_crop(channels, height, width, padding, flip):
    images = make_images(5, channels, height, width)
    index = torch.tensor([3, 3, 0, 4, 1, 3])
    found = augmented(CropAndFlip(padding, flip), images, index, generator(7, "aug"))
    assert found.dtype == torch.uint8
    assert found.shape == (6, channels, height, width)
    for output, i in zip(found.numpy(), index.tolist(), strict=True):
        moves = find(output, images[i].numpy(), padding)
        assert moves
        assert flip or any(not mirrored for _, _, mirrored in moves)


def test_crop_and_flip_draws_are_uniform_and_independent():
    """All 9 shifts of padding 1, each with and without flip, are equally frequent."""
    image = make_images(1, 1, 5, 5)
    found = augmented(CropAndFlip(1, True), image, torch.zeros(1800, dtype=torch.long), generator(0, "aug")).numpy()
    moves = [(d, r, f) for d in (-1, 0, 1) for r in (-1, 0, 1) for f in (False, True)]
    references = {crop(image[0].numpy(), 1, *move).tobytes(): 0 for move in moves}
    assert len(references) == 18
    for output in found:
        references[output.tobytes()] += 1
    assert stats.chisquare(list(references.values())).pvalue > 1e-3


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(5, 12), st.integers(5, 12), st.integers(0, 4), st.integers(0, 999))
def test_crop_and_flip_stays_inside_images_of_any_size(height, width, padding, seed):
    images = make_images(2, 1, height, width, seed)
    found = augmented(CropAndFlip(padding, False), images, torch.tensor([0, 1]), generator(seed, "aug"))
    assert all(find(out.numpy(), image.numpy(), padding) for out, image in zip(found, images, strict=True))


def test_crop_and_flip_treats_all_channels_alike():
    images = make_images(1, 1, 16, 16).expand(-1, 3, -1, -1)
    found = augmented(CropAndFlip(), images, torch.zeros(20, dtype=torch.long), generator(0, "aug"))
    assert torch.equal(found[:, 0], found[:, 1])
    assert torch.equal(found[:, 0], found[:, 2])


def test_crop_and_flip_depends_on_the_generator_only():
    images, index = make_images(8, 3, 16, 16), torch.arange(8)
    before = torch.random.get_rng_state()
    first, again, other = (augmented(CropAndFlip(), images, index, generator(s, "aug")) for s in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(augmented(CropAndFlip(0, False), images, index.flip(0)), images.flip(0))


@pytest.mark.parametrize(("height", "padding"), [(8, 0), (15, 0), (16, 2), (28, 4), (32, 4), (64, 8)])
def test_default_padding_is_an_eighth_of_the_height(height, padding):
    assert default_padding(height) == padding


def test_normalize_images_per_channel():
    images = make_images(4, 3, 5, 6)
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.247, 0.2435, 0.2616])
    found = normalize(images, mean, std)
    center, spread = (v.double().numpy()[:, None, None] for v in (mean, std))
    wanted = (images.double().numpy() / 255 - center) / spread
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8], ids=str)
def test_normalize_vectors_to_float32(dtype):
    vectors = torch.tensor([[1, 2], [3, 6]], dtype=dtype)
    found = normalize(vectors, torch.tensor([2.0, 4.0]), torch.tensor([1.0, 2.0]))
    assert found.tolist() == [[-1, -1], [1, 1]]
    assert found.dtype == torch.float32


def test_luminance_of_bytes_is_that_of_pillow_and_of_floats_its_formula():
    images = make_images(3, 3, 7, 9)
    found = luminance(images)
    assert found.dtype == torch.int32
    for image, gray in zip(images, found, strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L")
        np.testing.assert_array_equal(gray[0].numpy(), np.asarray(picture))
    torch.testing.assert_close(luminance(images / 255), found / 255, atol=1 / 255, rtol=0)
    torch.testing.assert_close(luminance(torch.ones(2, 3, 4, 5)), torch.ones(2, 1, 4, 5))
