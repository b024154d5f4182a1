"""Resizing in the exported graph is that of the import, to the pixel."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from complementary.data.images import to_square
from complementary.training.resize import PillowResize

SIDES = st.integers(1, 90)


@settings(max_examples=60, deadline=None)
@given(SIDES, SIDES, st.integers(1, 40), st.sampled_from(["crop", "stretch"]), st.integers(0, 10**6))
def test_resize_equals_the_import_to_the_pixel(height, width, size, fit, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    found = PillowResize(size, fit)(torch.from_numpy(pixels).permute(2, 0, 1)[None])
    assert found.dtype == torch.uint8
    assert np.array_equal(found[0].permute(1, 2, 0).numpy(), to_square(Image.fromarray(pixels), size, fit))


def test_resize_of_wide_photos_equals_one_call_of_pillow():
    pixels = np.random.default_rng(0).integers(0, 256, (50, 81, 3), dtype=np.uint8)
    photo = Image.fromarray(pixels)
    images = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    for fit, wanted in (
        ("crop", ImageOps.fit(photo, (24, 24), Image.Resampling.LANCZOS)),
        ("stretch", photo.resize((24, 24), Image.Resampling.LANCZOS)),
    ):
        assert np.array_equal(PillowResize(24, fit)(images)[0].permute(1, 2, 0).numpy(), np.asarray(wanted))


@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_resize_keeps_images_that_have_the_size(fit):
    images = torch.randint(0, 256, (4, 1, 13, 13), dtype=torch.uint8)
    assert torch.equal(PillowResize(13, fit)(images), images)
