"""Encoders of timm and transformers: with a small stand-in for timm, and with the packages if they are installed."""

import shutil
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
    with pytest.raises(UserError, match=r"pip install '\.\[encoders\]'"):
        load_external("timm", "tiny", MEAN, STD)


def check_against_the_package(encoder, body, folder, path):
    """The features are those of the package for the same pixels, also after the folder of the model is gone."""
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 3, 24, 24), dtype=np.uint8))
    settings = encoder.backbone.settings
    pixels = nn.functional.interpolate(images / 255, (settings["size"],) * 2, mode="bilinear")
    pixels = (pixels - torch.tensor(settings["mean"])[:, None, None]) / torch.tensor(settings["std"])[:, None, None]
    with torch.no_grad():
        wanted = nn.functional.normalize(body(pixels).flatten(1))
    assert torch.allclose(encoder(images), wanted, atol=1e-6)
    encoder.write(path)
    shutil.rmtree(folder)
    assert torch.allclose(FrozenEncoder.read(path)(images), wanted, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["ViT", "Dinov2", "ResNet", "ConvNext", "CLIPVision"])
def test_local_models_of_transformers(tmp_path, monkeypatch, name):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tokens = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    maps = {"ResNet": {"layer_type": "basic"}, "ConvNext": {"num_stages": 2}}.get(name)
    options = {**tokens, "image_size": 32, "patch_size": 8} if maps is None else maps | {"hidden_sizes": [8, 16]}
    options |= {"depths": [1, 1]} if maps is not None else {}
    options |= {"embedding_size": 8} if name == "ResNet" else {}
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**options)).eval()
    model.save_pretrained(tmp_path / "model")
    three = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.2, 0.3])
    encoder = FrozenEncoder(load_external("hf", str(tmp_path / "model"), *three), (3, 24, 24), *three)
    check_against_the_package(encoder, lambda x: model(x).pooler_output, tmp_path / "model", tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="nothing-here"):
        load_external("hf", str(tmp_path / "nothing-here"), *three)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224", "convnext_atto", "mobilenetv3_small_050"])
def test_local_models_of_timm(tmp_path, name):
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # a torchvision that does not fit torch
        pytest.skip(str(error))
    model = timm.create_model(name, num_classes=0).eval()
    (tmp_path / "model").mkdir()
    timm.models.save_for_hf(model, tmp_path / "model", model_config={"num_classes": 0}, safe_serialization=True)
    three = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.2, 0.3])
    encoder = FrozenEncoder(load_external("timm", f"local-dir:{tmp_path / 'model'}", *three), (3, 24, 24), *three)
    check_against_the_package(encoder, model, tmp_path / "model", tmp_path / "x.safetensors")
