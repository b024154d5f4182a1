"""The comparison of crops: both kinds are drawn, and the own ones are back afterwards."""

import pytest
import torch

from benchmarks.crops import BOXES, drawing, milder_boxes
from complementary.augment import views
from complementary.augment.views import TRIES, Views


def test_milder_boxes_cover_more_of_the_image():
    u = torch.rand(2 * TRIES + 2, 20_000, generator=torch.Generator().manual_seed(0))
    area = {
        name: float((b[2] * b[3]).mean()) / 32**2 for name, b in ((n, f(u, (32, 32), 0.2)) for n, f in BOXES.items())
    }
    assert area["milder (before)"] == pytest.approx(0.60, abs=0.01)
    assert area["as torchvision"] == pytest.approx(0.55, abs=0.01)
    top, left, height, width = milder_boxes(u, (32, 32), 0.2)
    assert bool(((top >= 0) & (left >= 0) & (top + height <= 32) & (left + width <= 32)).all())


def test_drawing_changes_the_views_within_its_block_only():
    own, u = views.crop_boxes, torch.rand(views.NUMBERS, 50, generator=torch.Generator().manual_seed(0))
    before = Views().read(u, (32, 32))
    with drawing(milder_boxes):
        assert not torch.equal(Views().read(u, (32, 32)).height, before.height)
    assert views.crop_boxes is own
