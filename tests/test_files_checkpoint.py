import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from complementary import files
from complementary.errors import UserError


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "c.safetensors"
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5), "empty": torch.zeros(0), "half": torch.ones(2).bfloat16()}
    tensors["scalar"] = torch.tensor(2.5, dtype=torch.float64)
    files.write(path, tensors, {"epoch": 3, "name": "x"})
    return path, tensors


def test_what_is_written_is_read(saved):
    path, tensors = saved
    found, record = files.read(path)
    assert record == {"epoch": 3, "name": "x"}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[k], tensors[k]) and found[k].dtype == tensors[k].dtype for k in tensors)


def test_equal_content_gives_equal_bytes(tmp_path):
    content = {"w": torch.arange(6.0).view(2, 3), "b": torch.ones(1)}
    for name in ("one", "two"):
        files.write(tmp_path / name, content, {"epoch": 1, "z": "ü"})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=60)
def test_any_flipped_bit_is_noticed(tmp_path_factory, where, bit):
    path = tmp_path_factory.mktemp("c") / "c.safetensors"
    files.write(path, {"a": torch.arange(8.0)}, {"epoch": 3})
    before = files.read(path)
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= 1 << bit
    path.write_bytes(content)
    try:
        tensors, record = files.read(path)
    except UserError:
        return
    # padding and JSON white space may change without changing what is said
    assert record == before[1]
    assert torch.equal(tensors["a"], before[0]["a"])


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 60, 0.5, -1])
def test_a_truncated_file_is_refused(saved, keep):
    path, _ = saved
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(UserError, match="is not a whole file of this package"):
        files.read(path)


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def test_a_hidden_pickle_is_refused_and_never_runs(tmp_path):
    mark = tmp_path / "executed"
    plain, archive = tmp_path / "plain.safetensors", tmp_path / "archive.safetensors"
    plain.write_bytes(pickle.dumps(Bomb(mark)))
    with zipfile.ZipFile(archive, "w") as file:  # the shape of a torch.save file
        file.writestr("archive/data.pkl", pickle.dumps(Bomb(mark)))
    for path in (plain, archive):
        with pytest.raises(UserError, match="is not a whole file of this package"):
            files.read(path)
    assert not mark.exists()


def test_a_foreign_safetensors_file_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "f.safetensors")
    with pytest.raises(UserError, match="not a whole file of this package"):
        files.read(tmp_path / "f.safetensors")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="There is no checkpoint"):
        files.read(tmp_path / "none")


def test_a_failed_write_keeps_the_old_file(saved, monkeypatch):
    path, _ = saved
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        files.write(path, {"a": torch.ones(9)}, {})
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_kill_in_the_middle_of_saving_leaves_a_whole_file(tmp_path):
    """A process that saves for ever is killed at some moment: what it leaves must be whole."""
    code = (
        "import sys, torch\nfrom pathlib import Path\nfrom complementary import checkpoint\n"
        "i = 0\nwhile True:\n    i += 1\n"
        "    checkpoint.write(Path(sys.argv[1]), {'a': torch.full((200_000,), float(i))}, {'i': i})\n"
        "    print(i, flush=True)\n"
    )
    path = tmp_path / "c.safetensors"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    process.kill()
    process.communicate()
    tensors, record = files.read(path)
    assert record["i"] >= 20
    assert (tensors["a"] == record["i"]).all()
