import json
from pathlib import Path

import numpy as np
import pytest

from complementary.data import cache
from complementary.errors import UserError


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


def test_what_is_written_is_read(root, images, store):
    store(root, "x", **{"train/inputs": images.transpose(0, 1, 3, 2), "train/truth": np.arange(50)})
    held = cache.read(root, "x")
    assert np.array_equal(held.arrays["train/inputs"], images.transpose(0, 1, 3, 2))
    assert isinstance(held.arrays["train/inputs"], np.memmap)
    assert held.manifest["source"] == "a test"
    cache.verify(held)
    assert cache.names(root) == ["x"]


def test_missing_sets_are_none(root):
    assert cache.read(root, "x") is None
    assert cache.names(root) == []


def test_changing_a_loaded_array_leaves_the_cache_alone(root, images, store):
    store(root, "x", a=images)
    cache.read(root, "x").arrays["a"][:] = 0
    cache.verify(cache.read(root, "x"))


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".x", "-x", "a b", "é", "x" * 65])
def test_names_that_are_no_folder_names(root, name):
    with pytest.raises(UserError, match="cannot name a dataset"):
        cache.read(root, name)


def test_a_reader_overtaken_by_a_writer_reads_the_new_version(root, images, monkeypatch, store):
    store(root, "x", a=images)
    stale = cache.read_manifest(root, "x")
    store(root, "x", a=images + 1)
    answers = iter([stale, cache.read_manifest(root, "x")])
    monkeypatch.setattr(cache, "read_manifest", lambda *_: next(answers))
    assert np.array_equal(cache.read(root, "x").arrays["a"], images + 1)


@pytest.mark.parametrize("harm", ["shorter", "gone", "other", "manifest", "layout"])
def test_damage_is_one_sentence_with_a_remedy(root, images, harm, store):
    store(root, "x", a=images)
    path, manifest = next((root / "sets/x").glob("*/a.npy")), root / "sets/x/manifest.json"
    if harm == "shorter":
        path.write_bytes(path.read_bytes()[:-1])
    elif harm == "gone":
        path.unlink()
    elif harm == "other":
        np.save(path, images[:10])
    elif harm == "manifest":
        manifest.write_text("{")
    else:
        manifest.write_text(json.dumps({"layout": 99}))
    with pytest.raises(cache.Damaged, match="cll data get x --again"):
        cache.read(root, "x")


def test_a_flipped_bit_is_found_by_verify(root, images, store):
    store(root, "x", a=images)
    path = next((root / "sets/x").glob("*/a.npy"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(cache.Damaged, match="does not match its checksum"):
        cache.verify(cache.read(root, "x"))


def test_default_places(monkeypatch, tmp_path):
    monkeypatch.delenv("COMPLEMENTARY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / "complementary"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / ".cache/complementary"
    monkeypatch.setenv("COMPLEMENTARY_CACHE", "/elsewhere")
    assert cache.cache_root() == Path("/elsewhere")
    assert cache.cache_root(tmp_path) == tmp_path
