"""Which images an encoder was pretrained on."""

import dataclasses

import pytest
import torch

from complementary import data, files
from complementary.config import PretrainConfig
from complementary.data import Dataset, Split
from complementary.data.rows import Rows
from complementary.encoders.frozen import FrozenEncoder
from complementary.encoders.pretrain import pretrain
from complementary.encoders.seen import KEY, image_digests, read_seen, were_seen
from complementary.errors import UserError
from tests.helpers import narrow_networks


def test_image_digests_are_those_of_the_content():
    images = data.load("digits").train.inputs[:200]
    found = image_digests(images)
    assert found.dtype == torch.int64
    assert len(found.unique()) == len(torch.unique(images.flatten(1), dim=0))
    order = torch.randperm(200)
    assert torch.equal(image_digests(Rows(images, order)), found[order])
    changed = images.clone()
    changed[7, 0, 3, 3] += 1
    assert (image_digests(changed) != found).nonzero().tolist() == [[7]]


def test_were_seen_finds_images_in_any_order():
    images = torch.randint(256, (50, 1, 4, 4), dtype=torch.uint8)
    seen = image_digests(images[torch.tensor([9, 3, 3, 40])])
    assert were_seen(images, seen).nonzero()[:, 0].tolist() == [3, 9, 40]
    assert not were_seen(images, torch.zeros(0, dtype=torch.int64)).any()


def test_pretraining_notes_its_images_and_those_of_its_start(tmp_path, monkeypatch):
    narrow_networks(monkeypatch)
    train = data.load("digits").train
    parts = [Split(train.inputs[i * 300 : (i + 1) * 300]) for i in range(3)]
    first, second = (
        Dataset(name, part, None, ("a", "b"), (0.3,), (0.3,)) for name, part in zip("ab", parts, strict=False)
    )
    config = PretrainConfig(epochs=1, batch=100, backbone="cnn", holdout=0.2)
    pretrain(config, tmp_path / "first", dataset=first, device="cpu")
    path = tmp_path / "first" / "encoder.safetensors"
    assert int(were_seen(parts[0].inputs, read_seen(path)).sum()) == 240, "the validation split is left out"
    start = dataclasses.replace(config, start=f"run:{tmp_path / 'first'}", holdout=0.0)
    pretrain(start, tmp_path / "second", dataset=second, device="cpu")
    seen = FrozenEncoder.read(tmp_path / "second" / "encoder.safetensors").seen
    assert [int(were_seen(part.inputs, seen).sum()) for part in parts] == [240, 300, 0]
    tensors, record = files.read_checkpoint(path)  # as an earlier version wrote it
    files.write_checkpoint(path, {k: v for k, v in tensors.items() if k != KEY}, record)
    assert read_seen(path) is None
    pretrain(start, tmp_path / "third", dataset=second, device="cpu")
    assert read_seen(tmp_path / "third" / "encoder.safetensors") is None, "what its start has seen is not known"


def test_read_seen_refuses_what_are_not_digests(tmp_path):
    files.write_checkpoint(tmp_path / "a.safetensors", {KEY: torch.zeros(3)}, {"shape": [1, 8, 8]})
    with pytest.raises(UserError, match=KEY):
        read_seen(tmp_path / "a.safetensors")


def test_read_seen_of_other_files_is_unknown(tmp_path):
    torch.save({"a": torch.zeros(2)}, tmp_path / "weights.pt")
    assert read_seen(tmp_path / "weights.pt") is None
    assert read_seen(tmp_path / "nowhere.safetensors") is None
