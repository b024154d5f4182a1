"""Encoders of timm and transformers: with a small stand-in for timm, and a small local model of transformers."""

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from complementary import load
from complementary.augment.crop import normalize
from complementary.config import Config
from complementary.encoders.external import ExternalBackbone, load_external
from complementary.encoders.frozen import FrozenEncoder
from complementary.encoders.spec import EncoderSpec
from complementary.errors import UserError
from complementary.training.export import Pipeline, example_inputs
from complementary.training.run import run

MEAN, STD = torch.tensor([0.3]), torch.tensor([0.4])
OWN_MEAN, OWN_STD = [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]


@pytest.fixture
def timm(monkeypatch):
    """A stand-in for timm with one model; the calls are recorded."""
    module = types.ModuleType("timm")
    module.data, module.calls = types.ModuleType("timm.data"), []

    def create_model(name, pretrained, num_classes):
        module.calls.append((name, pretrained, num_classes))
        if name != "tiny":
            raise RuntimeError(f"Unknown model ({name})")
        torch.manual_seed(1 if pretrained else 2)
        return nn.Sequential(
            nn.Conv2d(3, 12, 3, 2), nn.BatchNorm2d(12), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )

    module.create_model = create_model
    module.data.resolve_model_data_config = lambda model: {"input_size": (3, 16, 16), "mean": OWN_MEAN, "std": OWN_STD}
    monkeypatch.setitem(sys.modules, "timm", module)
    monkeypatch.setitem(sys.modules, "timm.data", module.data)
    return module


def test_spec_reads_models_of_other_packages():
    for text, kind, name in (
        ("timm:resnet18.a1_in1k", "timm", "resnet18.a1_in1k"),
        ("hf:facebook/dinov2-small", "hf", "facebook/dinov2-small"),
        ("hf:./models/a:b", "hf", "./models/a:b"),
    ):
        spec = EncoderSpec.parse(text)
        assert (spec.kind, spec.name, str(spec)) == (kind, name, text)
        assert spec.is_network
        assert spec.weights is None
    for text in ("timm:", "hf", "timm"):
        with pytest.raises(UserError):
            EncoderSpec.parse(text)


def test_images_are_normalized_and_resized_as_the_model_wants(timm):
    """A slow reference: repeat the channel, resize, normalize with the model's own moments."""
    backbone = load_external("timm", "tiny", MEAN, STD)
    images = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)
    found = backbone.features(normalize(images, MEAN, STD))
    scaled = nn.functional.interpolate(images.float().repeat(1, 3, 1, 1) / 255, (16, 16), mode="bilinear")
    wanted = backbone.body((scaled - torch.tensor(OWN_MEAN)[:, None, None]) / torch.tensor(OWN_STD)[:, None, None])
    assert torch.allclose(found, wanted, atol=1e-5)
    assert timm.calls == [("tiny", True, 0)]


def test_stored_encoder_is_read_without_a_download(timm, tmp_path):
    backbone = load_external("timm", "tiny", MEAN, STD)
    encoder = FrozenEncoder(backbone, (1, 8, 8), MEAN, STD)
    encoder.write(tmp_path / "encoder.safetensors")
    again = FrozenEncoder.read(tmp_path / "encoder.safetensors")
    images = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8)
    assert torch.allclose(encoder(images), again(images), atol=1e-6)
    assert timm.calls[-1] == ("tiny", False, 0)
    assert isinstance(again.backbone, ExternalBackbone)


@pytest.mark.parametrize("self_training", [0, 2])
def test_run_on_features_of_an_external_encoder(timm, tmp_path, monkeypatch, self_training):
    """Trained, stored, loaded and exported as one pipeline; self-training keeps the encoder frozen."""
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    options = {"inputs": "features", "encoder": "timm:tiny", "mix": "none", "epochs": 2, "batch": 128}
    result = run(Config.of(**options, self_training=self_training), tmp_path / "run", device="cpu")
    assert result["data"]["encoder"] == "timm:tiny"
    predictor = load(tmp_path / "run")
    inputs = example_inputs(predictor, 6)
    assert predictor.network.kind == "linear"
    assert torch.allclose(Pipeline(predictor)(inputs), predictor(inputs), atol=1e-5)


def test_missing_packages_and_unknown_models_are_named(timm, monkeypatch):
    with pytest.raises(UserError, match="huge") as caught:
        load_external("timm", "huge", MEAN, STD)
    assert caught.value.option == "encoder"
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"complementary\[encoders\]"):
        load_external("timm", "tiny", MEAN, STD)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_local_model_of_transformers(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8
    )
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    backbone = load_external("hf", str(tmp_path / "vit"), MEAN, STD)
    encoder = FrozenEncoder(backbone, (1, 8, 8), MEAN, STD)
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8), dtype=np.uint8))
    assert encoder(images).shape == (3, 16)
    encoder.write(tmp_path / "encoder.safetensors")
    for file in (tmp_path / "vit").iterdir():
        file.unlink()
    assert torch.allclose(FrozenEncoder.read(tmp_path / "encoder.safetensors")(images), encoder(images), atol=1e-5)
    with pytest.raises(UserError, match="nothing-here"):
        load_external("hf", str(tmp_path / "nothing-here"), MEAN, STD)
