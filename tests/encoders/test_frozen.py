"""A frozen encoder: applied to new images, written to a file and read again."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from complementary import files
from complementary.data import load
from complementary.encoders.backbone import build_backbone, describe, load_weights
from complementary.encoders.frozen import FrozenEncoder


def frozen(kind="cnn", shape=(1, 8, 8), max_pool=True, seed=3):
    backbone, _ = build_backbone(kind, shape, seed, max_pool)
    return FrozenEncoder(backbone, shape, torch.full(shape[:1], 0.4), torch.full(shape[:1], 0.2))


@pytest.mark.parametrize("kind", ["cnn", "resnet18"])
@pytest.mark.parametrize("max_pool", [True, False])
def test_frozen_encoder_round_trip(tmp_path, kind, max_pool):
    one = frozen(kind, (3, 16, 16), max_pool)
    one.write(tmp_path / "encoder.safetensors")
    other = FrozenEncoder.read(tmp_path / "encoder.safetensors")
    images = torch.randint(256, (5, 3, 16, 16), dtype=torch.uint8)
    assert torch.equal(one(images), other(images))
    assert other.shape == (3, 16, 16)
    assert describe(other.backbone) == describe(one.backbone)
    assert one.fingerprint == other.fingerprint != frozen(kind, (3, 16, 16), max_pool, seed=4).fingerprint


def test_frozen_encoder_with_mirror_averages_both_images(tmp_path):
    plain = frozen("resnet18", (3, 16, 16))
    both = dataclasses.replace(plain, mirror=True)
    images = torch.randint(256, (6, 3, 16, 16), dtype=torch.uint8)
    torch.testing.assert_close(both(images), F.normalize(plain(images) + plain(images.flip(-1))))
    torch.testing.assert_close(both(images), both(images.flip(-1)))
    assert not torch.allclose(plain(images), plain(images.flip(-1)), atol=1e-3)
    both.write(tmp_path / "encoder.safetensors")
    torch.testing.assert_close(FrozenEncoder.read(tmp_path / "encoder.safetensors")(images), both(images))


def test_frozen_encoder_in_half_precision_can_be_loaded(tmp_path):
    one, images = frozen(), load("digits").test.inputs
    half = {k: v.half() if v.is_floating_point() else v for k, v in one.backbone.state_dict().items()}
    files.write_checkpoint(tmp_path / "half.safetensors", half, {"shape": [1, 8, 8], **describe(one.backbone)})
    other = dataclasses.replace(one, backbone=load_weights(tmp_path / "half.safetensors", (1, 8, 8)))
    torch.testing.assert_close(other(images), one(images), atol=2e-3, rtol=0)
