"""Backbones: building, loading from files of this package and elsewhere, and features."""

import os
import pickle

import pytest
import torch
from safetensors.torch import save_file

from complementary import files, networks
from complementary.data import load
from complementary.encoders.backbone import (
    build_backbone,
    default_backbone,
    describe,
    extract_features,
    load_backbone,
    load_encoder,
    load_weights,
)
from complementary.encoders.spec import EncoderSpec
from complementary.errors import UserError
from complementary.networks import Network
from complementary.rng import generator

SHAPE = (3, 16, 16)
MEAN, STD = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.3, 0.25])
IMAGES = torch.randint(0, 256, (6, *SHAPE), dtype=torch.uint8, generator=generator(0, "images"))


# --- building and features ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "name"), [((1, 8, 8), "cnn"), ((3, 15, 40), "cnn"), ((3, 16, 16), "resnet18")])
def test_default_backbone_depends_on_the_size(shape, name):
    assert default_backbone(shape) == name


def test_build_backbone_has_no_last_layer():
    backbone, width = build_backbone("resnet18", (3, 32, 32), 0, True)
    assert isinstance(backbone, Network)
    assert width == 512
    assert not hasattr(backbone, "fc")


@pytest.mark.parametrize("batch", [7, 360, None])
def test_extract_features_returns_unit_vectors_for_any_batch(batch):
    backbone, width = build_backbone("cnn", (1, 8, 8), 0, True)
    images, mean, std = load("digits").test.inputs, torch.tensor([0.3]), torch.tensor([0.3])
    done = []
    z = extract_features(backbone.train(), images, mean, std, batch=batch, progress=done.append)
    assert z.shape == (360, width)
    assert z.dtype == torch.float32
    torch.testing.assert_close(z.norm(dim=1), torch.ones(360))
    torch.testing.assert_close(z, extract_features(backbone, images, mean, std, batch=360), atol=1e-5, rtol=0)
    assert done[-1] == 360
    assert done == sorted(done)


def test_extract_features_with_mirror_is_invariant_to_flips():
    backbone, _ = build_backbone("cnn", SHAPE, 0, True)
    one, other = (extract_features(backbone, x, MEAN, STD, mirror=True) for x in (IMAGES, IMAGES.flip(-1)))
    torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    assert not torch.allclose(one, extract_features(backbone, IMAGES, MEAN, STD), atol=1e-3)


# --- encoders of this package -------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A folder of cll pretrain, with half precision weights as in the repository."""
    backbone, _ = build_backbone("cnn", SHAPE, 7, True)
    tensors = {k: v.half() if v.is_floating_point() else v for k, v in backbone.state_dict().items()}
    files.write_checkpoint(tmp_path / "encoder.safetensors", tensors, describe(backbone) | {"shape": list(SHAPE)})
    return tmp_path


@pytest.mark.parametrize("kind", ["run", "file"])
def test_load_backbone_loads_an_encoder_as_float32(folder, kind):
    path = folder if kind == "run" else folder / "encoder.safetensors"
    loaded = load_backbone(EncoderSpec.parse(f"{kind}:{path}"), SHAPE).state_dict()
    wanted = build_backbone("cnn", SHAPE, 7, True)[0].state_dict()
    for name, value in loaded.items():
        assert value.dtype == (torch.float32 if value.is_floating_point() else torch.int64)
        torch.testing.assert_close(value, wanted[name], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("text", ["simsiam", "pixels", "embeddings:z.npy"])
def test_load_backbone_rejects_specs_without_weights(text):
    with pytest.raises(UserError, match="run:FOLDER") as caught:
        load_backbone(EncoderSpec.parse(text), SHAPE)
    assert caught.value.option == "encoder"


def test_load_encoder_rejects_another_shape(folder):
    with pytest.raises(UserError, match=r"\[3, 16, 16\].*\[1, 8, 8\]"):
        load_encoder(folder / "encoder.safetensors", (1, 8, 8))


def test_load_encoder_rejects_missing_altered_and_other_files(folder, tmp_path):
    with pytest.raises(UserError, match="nowhere has no"):
        load_encoder(tmp_path / "nowhere" / "encoder.safetensors", SHAPE)
    path = folder / "encoder.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="altered"):
        load_encoder(path, SHAPE)
    files.write_checkpoint(path, {"assignment": torch.arange(3)}, {"version": 1})
    with pytest.raises(UserError, match="not an encoder"):
        load_encoder(path, SHAPE)


# --- state dicts from elsewhere -----------------------------------------------------------------------------------


def torchvision_names():
    """The names in the state dict of torchvision's resnet18."""

    def norm(name):
        return [f"{name}.{part}" for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]

    names = ["conv1.weight", *norm("bn1"), "fc.weight", "fc.bias"]
    for layer in range(1, 5):
        for block in range(2):
            place = f"layer{layer}.{block}"
            names += [f"{place}.conv1.weight", *norm(f"{place}.bn1"), f"{place}.conv2.weight", *norm(f"{place}.bn2")]
        names += [f"layer{layer}.0.downsample.0.weight", *norm(f"layer{layer}.0.downsample.1")] if layer > 1 else []
    return set(names)


@pytest.fixture(scope="module")
def resnet():
    """A classifier of 1,000 classes, with batch-norm statistics that are not the initial ones."""
    network = networks.build("resnet18", SHAPE, 1000, seed=5)
    network.train()(IMAGES.float() / 255)
    return network


@pytest.fixture
def weights(resnet):
    return dict(resnet.state_dict())


def write(path, tensors):
    save_file(tensors, path) if path.suffix == ".safetensors" else torch.save(tensors, path)
    return path


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "pth"])
@pytest.mark.parametrize("last", [True, False], ids=["with fc", "without fc"])
def test_load_weights_accepts_torchvision_names(tmp_path, resnet, weights, suffix, last):
    assert set(weights) == torchvision_names()
    if not last:
        del weights["fc.weight"], weights["fc.bias"]
    backbone = load_weights(write(tmp_path / f"w.{suffix}", weights), SHAPE)
    found, wanted = (extract_features(network, IMAGES, MEAN, STD) for network in (backbone, resnet))
    torch.testing.assert_close(found, wanted)


def test_load_weights_accepts_a_classifier_of_this_package(tmp_path, resnet, weights):
    for max_pool in (True, False):
        record = {"model": "resnet18", "shape": list(SHAPE), "max_pool": max_pool}
        files.write_checkpoint(tmp_path / "last.safetensors", weights, record)
        backbone = load_weights(tmp_path / "last.safetensors", SHAPE)
        assert backbone.max_pool is max_pool
        if max_pool == resnet.max_pool:
            found, wanted = (extract_features(network, IMAGES, MEAN, STD) for network in (backbone, resnet))
            torch.testing.assert_close(found, wanted)


def remove(tensors):
    del tensors["layer3.0.downsample.1.running_var"], tensors["bn1.bias"]


def add(tensors):
    tensors |= {"module.conv1.weight": torch.ones(1), "head.fc.bias": torch.ones(2)}


def reshape(tensors):
    tensors["conv1.weight"] = torch.zeros(64, 3, 7, 7)


MISSING = "missing: bn1.bias, layer3.0.downsample.1.running_var"
UNEXPECTED = "unexpected: head.fc.bias, module.conv1.weight"
SHAPED = "of another shape: conv1.weight [64, 3, 7, 7] instead of [64, 3, 3, 3]"


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize(
    ("changes", "listed"),
    [
        ([remove], MISSING),
        ([add], UNEXPECTED),
        ([reshape], SHAPED),
        ([remove, add, reshape], "; ".join([MISSING, UNEXPECTED, SHAPED])),
    ],
    ids=["missing", "unexpected", "shape", "all three"],
)
def test_load_weights_lists_what_does_not_fit(tmp_path, weights, suffix, changes, listed):
    for change in changes:
        change(weights)
    path = write(tmp_path / f"w.{suffix}", weights)
    with pytest.raises(UserError) as caught:
        load_weights(path, SHAPE)
    assert f"({listed})" in str(caught.value)
    assert str(path) in str(caught.value)


def test_load_weights_of_color_images_does_not_fit_gray_ones(tmp_path, weights):
    with pytest.raises(UserError, match=r"conv1.weight \[64, 3, 3, 3\] instead of \[64, 1, 3, 3\]"):
        load_weights(write(tmp_path / "w.pt", weights), (1, 16, 16))


class Trap:
    """Creates a folder if it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("how", ["torch", "torch, old format", "pickle"])
def test_load_weights_does_not_run_code_of_a_pickle(tmp_path, weights, how):
    path, trap = tmp_path / "w.pt", tmp_path / "trap"
    small = {"conv1.weight": weights["conv1.weight"], "trap": Trap(trap)}
    if how == "pickle":
        path.write_bytes(pickle.dumps(small))
    else:
        torch.save(small, path, _use_new_zipfile_serialization=how == "torch")
    with pytest.raises(UserError, match="was not loaded"):
        load_weights(path, SHAPE)
    assert not trap.exists()
    pickle.loads(pickle.dumps(Trap(trap)))
    assert trap.exists(), "the trap works"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.ones(3), "holds a Tensor"),
        ([torch.ones(3)], "holds a list"),
        ({0: torch.ones(3)}, "holds a dict"),
        ({"state_dict": {"bn1.bias": torch.ones(64)}, "epoch": 3}, "state_dict, epoch"),
        ({"conv1.weight": 3.0}, "conv1.weight"),
        ({}, "missing: bn1.bias"),
    ],
    ids=["tensor", "list", "numbers", "wrapped", "float", "empty"],
)
def test_load_weights_rejects_a_pt_file_that_is_not_a_state_dict(tmp_path, content, message):
    with pytest.raises(UserError, match=message):
        load_weights(write(tmp_path / "w.pt", content), SHAPE)


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize("content", [None, b"", b"weights", b"PK\x03\x04 and no more"], ids=str)
def test_load_weights_rejects_unreadable_files(tmp_path, suffix, content):
    path = tmp_path / f"w.{suffix}"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"w.{suffix}"):
        load_weights(path, SHAPE)
