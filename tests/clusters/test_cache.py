"""What is kept between runs: named by content, verified, made by one process at a time."""

import os
import signal
import time

import pytest
import torch

from complementary import files
from complementary.clusters import assignments
from complementary.clusters import cache as stages
from complementary.errors import UserError

INPUTS = torch.arange(60, dtype=torch.float32).view(20, 3)
HOME = torch.arange(20) % 4
DECIDES = {"encoder": "pixels", "clusters": 4}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def refuse():
    raise AssertionError("it was made again")


def test_what_was_made_once_is_not_made_again(cache, capsys):
    assert torch.equal(stages.clusters(INPUTS, 4, DECIDES, lambda: HOME), HOME)
    assert torch.equal(stages.clusters(INPUTS, 4, dict(reversed(DECIDES.items())), refuse), HOME)
    (path,) = (cache / "stages").iterdir()
    assert path == stages.place(stages.named("clusters", DECIDES) + ".safetensors")
    assert assignments.read(path, INPUTS)[1]["made_by"] == DECIDES
    assert capsys.readouterr().err == ""


def test_whatever_decides_changes_the_name():
    names = {stages.named("clusters", d) for d in (DECIDES, DECIDES | {"clusters": 5}, {"encoder": "pixels"}, {})}
    assert len(names) == 4


def test_a_file_counts_by_its_content(tmp_path):
    for name, content in (("a", b"x" * 100_000), ("b", b"x" * 100_000), ("c", b"x" * 99_999 + b"y")):
        (tmp_path / name).write_bytes(content)
    a, b, c = (files.fingerprint_file(tmp_path / name) for name in "abc")
    assert a == b != c


# --- damage -------------------------------------------------------------------------------------------


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "empty": lambda path: path.write_bytes(b""),
    "flipped bit": flip,
    "text": lambda path: path.write_text("clusters"),
    "of other examples": lambda path: assignments.write(path, HOME, 4, INPUTS + 1, {}),
    "of fewer examples": lambda path: assignments.write(path, HOME[:9], 4, INPUTS[:9], {}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_made_again_with_one_line(cache, capsys, damage):
    stages.clusters(INPUTS, 4, DECIDES, lambda: HOME)
    (path,) = (cache / "stages").iterdir()
    whole = path.read_bytes()
    DAMAGES[damage](path)
    assert torch.equal(stages.clusters(INPUTS, 4, DECIDES, lambda: HOME), HOME)
    assert capsys.readouterr().err == f"the clusters kept in {path} are damaged; clustering again\n"
    assert path.read_bytes() == whole
    assert torch.equal(stages.clusters(INPUTS, 4, DECIDES, refuse), HOME)


def test_a_cache_that_cannot_be_written_costs_only_the_keeping(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "file" / "cache"))
    assert torch.equal(stages.clusters(INPUTS, 4, DECIDES, lambda: HOME), HOME)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("the clusters will not be kept: The cache ")


def test_a_disk_that_fills_up_costs_only_the_keeping(monkeypatch, capsys, cache):
    def full(*_):
        raise UserError("it cannot be written (No space left on device).")

    monkeypatch.setattr(assignments, "write", full)
    assert torch.equal(stages.clusters(INPUTS, 4, DECIDES, lambda: HOME), HOME)
    assert capsys.readouterr().err == "the clusters are not kept: it cannot be written (No space left on device).\n"


def test_an_error_in_the_making_is_not_swallowed(cache):
    with pytest.raises(AssertionError, match="it was made again"):
        stages.clusters(INPUTS, 4, DECIDES, refuse)
    assert torch.equal(stages.clusters(INPUTS, 4, DECIDES, lambda: HOME), HOME), "and the lock is free"


# --- two processes ------------------------------------------------------------------------------------


def wait_for(path):
    for _ in range(1000):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} did not come")


def test_the_second_process_waits_for_the_first_and_takes_its_result(tmp_path, in_child, capsys):
    begun = tmp_path / "begun"

    def slowly():
        begun.touch()
        time.sleep(0.5)
        return HOME

    child = in_child(lambda: stages.clusters(INPUTS, 4, DECIDES, slowly))
    wait_for(begun)
    assert torch.equal(stages.clusters(INPUTS, 4, DECIDES, refuse), HOME)
    assert os.waitpid(child, 0)[1] == 0
    assert capsys.readouterr().err == "another process is clustering the same examples right now; waiting for it\n"


def test_a_process_that_is_killed_holds_nobody_up(tmp_path, in_child):
    begun = tmp_path / "begun"

    def forever():
        begun.touch()
        time.sleep(600)
        return HOME

    child = in_child(lambda: stages.clusters(INPUTS, 4, DECIDES, forever))
    wait_for(begun)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert torch.equal(stages.clusters(INPUTS, 4, DECIDES, lambda: HOME), HOME)


def test_other_stages_do_not_wait(tmp_path, in_child, capsys):
    begun, done = tmp_path / "begun", tmp_path / "done"

    def until_done():
        begun.touch()
        wait_for(done)
        return HOME

    child = in_child(lambda: stages.clusters(INPUTS, 4, DECIDES, until_done))
    wait_for(begun)
    stages.clusters(INPUTS, 4, DECIDES | {"seed": 1}, lambda: HOME)
    done.touch()
    assert os.waitpid(child, 0)[1] == 0
    assert capsys.readouterr().err == ""
