"""The cache of stages: named by content, verified, computed by one process at a time."""

import logging
import os
import signal
import time

import pytest
import torch

from complementary import files
from complementary.clusters import cache
from complementary.errors import UserError

TENSOR = torch.arange(20) % 4
KEY = {"encoder": "pixels", "clusters": 4}


@pytest.fixture(autouse=True)
def stages(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stages"


def read(path):
    return files.read_checkpoint(path)[0]["t"]


def write(path, tensor):
    files.write_checkpoint(path, {"t": tensor}, {})


def cached(make=lambda: TENSOR, key=KEY, write=write):
    return cache.cached("clusters", key, make, read, write)


def refuse():
    raise AssertionError("computed again")


def test_cached_computes_once(stages, caplog):
    assert torch.equal(cached(), TENSOR)
    assert torch.equal(cached(refuse, dict(reversed(KEY.items()))), TENSOR)
    (path,) = stages.iterdir()
    assert path == cache.stage_path(cache.stage_name("clusters", KEY) + ".safetensors")
    assert not caplog.records


def test_cached_without_a_key_stores_nothing(stages):
    assert torch.equal(cached(key=None), TENSOR)
    assert not stages.exists()


def test_stage_name_depends_on_kind_and_key():
    keys = (KEY, KEY | {"clusters": 5}, {"encoder": "pixels"}, {})
    assert len({cache.stage_name(kind, key) for key in keys for kind in ("clusters", "features")}) == 8


# --- damage -------------------------------------------------------------------------------------------------------


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "empty": lambda path: path.write_bytes(b""),
    "flipped bit": flip_a_bit,
    "text": lambda path: path.write_text("clusters"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_cached_computes_a_damaged_stage_again_with_one_warning(stages, caplog, damage):
    cached()
    (path,) = stages.iterdir()
    whole = path.read_bytes()
    DAMAGES[damage](path)
    assert torch.equal(cached(), TENSOR)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(path) in record.getMessage()
    assert path.read_bytes() == whole
    assert torch.equal(cached(refuse), TENSOR)


def test_cached_returns_the_result_if_the_cache_is_not_writable(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "file" / "cache"))
    assert torch.equal(cached(), TENSOR)
    (record,) = caplog.records
    assert "not cached" in record.getMessage()


def test_cached_returns_the_result_if_the_disk_is_full(caplog):
    def full(*_):
        raise UserError("No space left on device.")

    assert torch.equal(cached(write=full), TENSOR)
    (record,) = caplog.records
    assert "No space left" in record.getMessage()


def test_cached_raises_errors_of_the_computation_and_frees_the_lock():
    with pytest.raises(AssertionError, match="computed again"):
        cached(refuse)
    assert torch.equal(cached(), TENSOR)


# --- two processes ------------------------------------------------------------------------------------------------


def wait_for(path):
    for _ in range(1000):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} did not appear")


def test_cached_waits_for_another_process_and_uses_its_result(tmp_path, in_child, caplog):
    caplog.set_level(logging.INFO, "complementary")
    started = tmp_path / "started"

    def slow():
        started.touch()
        time.sleep(0.5)
        return TENSOR

    child = in_child(lambda: cached(slow))
    wait_for(started)
    assert torch.equal(cached(refuse), TENSOR)
    assert os.waitpid(child, 0)[1] == 0
    assert ["waiting" in record.getMessage() for record in caplog.records] == [True]


def test_cached_does_not_wait_for_a_killed_process(tmp_path, in_child):
    started = tmp_path / "started"

    def forever():
        started.touch()
        time.sleep(600)

    child = in_child(lambda: cached(forever))
    wait_for(started)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert torch.equal(cached(), TENSOR)


def test_cached_does_not_wait_for_other_stages(tmp_path, in_child, caplog):
    caplog.set_level(logging.INFO, "complementary")
    started, done = tmp_path / "started", tmp_path / "done"

    def until_done():
        started.touch()
        wait_for(done)
        return TENSOR

    child = in_child(lambda: cached(until_done))
    wait_for(started)
    cached(key=KEY | {"seed": 1})
    done.touch()
    assert os.waitpid(child, 0)[1] == 0
    assert not caplog.records
