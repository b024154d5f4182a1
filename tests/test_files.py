import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import filelock
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import complementary
from complementary import files
from complementary.data.rows import Rows
from complementary.errors import UserError

# --- checkpoints ----------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "c.safetensors"
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5), "empty": torch.zeros(0), "half": torch.ones(2).bfloat16()}
    tensors["scalar"] = torch.tensor(2.5, dtype=torch.float64)
    files.write_checkpoint(path, tensors, {"epoch": 3, "name": "x"})
    return path, tensors


def test_checkpoint_round_trip(saved):
    path, tensors = saved
    found, record = files.read_checkpoint(path)
    assert record == files.read_record(path) == {"epoch": 3, "name": "x"}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[k], tensors[k]) and found[k].dtype == tensors[k].dtype for k in tensors)


def test_checkpoint_of_equal_content_has_equal_bytes(tmp_path):
    content = {"w": torch.arange(6.0).view(2, 3), "b": torch.ones(1)}
    for name in ("one", "two"):
        files.write_checkpoint(tmp_path / name, content, {"epoch": 1, "z": "ü"})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=60)
def test_checkpoint_with_a_flipped_bit_is_refused(tmp_path_factory, where, bit):
    path = tmp_path_factory.mktemp("c") / "c.safetensors"
    files.write_checkpoint(path, {"a": torch.arange(8.0)}, {"epoch": 3})
    before = files.read_checkpoint(path)
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= 1 << bit
    path.write_bytes(content)
    try:
        tensors, record = files.read_checkpoint(path)
    except UserError:
        return
    # padding and JSON white space may change without changing the content
    assert record == before[1]
    assert torch.equal(tensors["a"], before[0]["a"])


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 60, 0.5, -1])
def test_checkpoint_that_is_truncated_is_refused(saved, keep):
    path, _ = saved
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(UserError, match="not a valid checkpoint"):
        files.read_checkpoint(path)
    assert files.read_record(path) == {} or keep in (-1, 0.5)


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def test_checkpoint_never_runs_a_pickle(tmp_path):
    executed = tmp_path / "executed"
    plain, archive = tmp_path / "plain.safetensors", tmp_path / "archive.safetensors"
    plain.write_bytes(pickle.dumps(Bomb(executed)))
    with zipfile.ZipFile(archive, "w") as file:  # the layout of a torch.save file
        file.writestr("archive/data.pkl", pickle.dumps(Bomb(executed)))
    for path in (plain, archive):
        with pytest.raises(UserError, match="not a valid checkpoint"):
            files.read_checkpoint(path)
    assert not executed.exists()


def test_checkpoint_of_another_package_is_refused(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "f.safetensors")
    with pytest.raises(UserError, match="not a valid checkpoint"):
        files.read_checkpoint(tmp_path / "f.safetensors")
    assert files.read_record(tmp_path / "f.safetensors") == {}


def test_checkpoint_that_is_missing_is_named(tmp_path):
    with pytest.raises(UserError, match="no checkpoint"):
        files.read_checkpoint(tmp_path / "none")


# --- atomic writes --------------------------------------------------------------------------------


def test_atomic_write_takes_text_bytes_and_parts(tmp_path):
    for content in ("ü\n", "ü\n".encode(), iter(["ü", "\n"])):
        files.atomic_write(tmp_path / "a", content)
        assert (tmp_path / "a").read_bytes() == "ü\n".encode()


def test_atomic_write_that_fails_keeps_the_old_file(saved, monkeypatch):
    path, _ = saved
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        files.write_checkpoint(path, {"a": torch.ones(9)}, {})
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_atomic_write_to_a_pipe_does_not_replace_it(tmp_path):
    """As root, a rename would replace /dev/null by a plain file."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    files.atomic_write(tmp_path / "pipe", "text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_atomic_write_to_a_full_device_is_refused():
    with pytest.raises(UserError, match="No space left"):
        files.atomic_write(Path("/dev/full"), "text")
    assert Path("/dev/full").is_char_device()


def test_atomic_write_keeps_bytes_of_names_that_are_not_utf8(tmp_path):
    files.atomic_write(tmp_path / "a", os.fsdecode(b"photo-\xff.png\n"))
    assert (tmp_path / "a").read_bytes() == b"photo-\xff.png\n"


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "missing/a", "file/a", "folder", "."])
def test_atomic_write_to_an_impossible_path_is_refused(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        files.atomic_write(tmp_path / name if name != "." else Path("/"), "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_reading_turns_every_exception_into_one_user_error():
    for error in (
        ValueError("x"),
        MemoryError(),
        RecursionError("deep"),
        OSError(5, "Input/output error"),
        KeyError("k"),
    ):
        with pytest.raises(UserError, match="The file F") as caught, files.reading("The file F", "get it again", "out"):
            raise error
        assert caught.value.option == "out"
    with pytest.raises(UserError, match="own words"), files.reading("F"):
        raise UserError("own words")
    with pytest.raises(KeyboardInterrupt), files.reading("F"):
        raise KeyboardInterrupt


def test_seal_finds_every_change():
    record = {"a": 0.1, "b": [1, (2, 3)], "c": {"d": None}}
    sealed = json.loads(json.dumps(files.seal(record)))
    assert not files.is_altered(sealed)
    assert not files.is_altered(record)  # no seal
    assert files.is_altered(sealed | {"a": 0.2})
    assert files.is_altered(sealed | {"new": 1})
    assert files.is_altered({name: value for name, value in sealed.items() if name != "c"})


@pytest.mark.slow
def test_atomic_write_survives_a_kill(tmp_path):
    code = (
        "import sys, torch\nfrom pathlib import Path\nfrom complementary import files\n"
        "i = 0\nwhile True:\n    i += 1\n"
        "    files.write_checkpoint(Path(sys.argv[1]), {'a': torch.full((200_000,), float(i))}, {'i': i})\n"
        "    print(i, flush=True)\n"
    )
    path = tmp_path / "c.safetensors"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    process.kill()
    process.communicate()
    tensors, record = files.read_checkpoint(path)
    assert record["i"] >= 20
    assert (tensors["a"] == record["i"]).all()


# --- fingerprints ---------------------------------------------------------------------------------


def test_fingerprint_depends_on_names_types_shapes_values_and_text():
    a = torch.arange(6.0)
    variants = [{"a": a}, {"b": a}, {"a": a.double()}, {"a": a.view(2, 3)}, {"a": a + 1}, {}]
    found = [files.fingerprint(tensors) for tensors in variants] + [files.fingerprint({"a": a}, "text")]
    assert len(set(found)) == len(found)
    assert files.fingerprint({"a": a, "b": a}) == files.fingerprint({"b": a, "a": a})
    assert files.fingerprint({"a": a.view(2, 3).T}) == files.fingerprint({"a": a.view(2, 3).T.contiguous()})


def test_fingerprint_rows_reads_in_parts():
    images = torch.randint(0, 256, (9000, 2), dtype=torch.uint8)
    whole = files.fingerprint_rows(images)
    assert whole == files.fingerprint_rows(Rows(images.repeat_interleave(2, 0), torch.arange(0, 18000, 2)))
    assert whole != files.fingerprint_rows(images.flip(0))
    assert whole != files.fingerprint_rows(images.view(9000, 1, 2))


def test_fingerprint_json_ignores_the_order_of_keys():
    assert files.fingerprint_json({"a": 1, "b": [2]}) == files.fingerprint_json({"b": [2], "a": 1})
    assert files.fingerprint_json({"a": 1}) != files.fingerprint_json({"a": 2})


def test_fingerprint_file_reads_the_content(tmp_path):
    for name, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).write_bytes(content)
    a, b, c = (files.fingerprint_file(tmp_path / name) for name in "abc")
    assert a == b != c


# --- locks ----------------------------------------------------------------------------------------


@pytest.fixture
def lock_in_child(tmp_path):
    """Start a process that holds the lock until it is killed (or for some seconds) -> (path, process)."""
    path, processes = tmp_path / "lock", []

    def start(seconds: float = 60) -> tuple[Path, subprocess.Popen[str]]:
        code = (
            "import sys, time\nfrom pathlib import Path\nfrom complementary import files\n"
            f"with files.lock(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep({seconds})\n"
        )
        process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return path, process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_lock_is_exclusive_and_released(tmp_path):
    path = tmp_path / "lock"
    assert not files.is_locked(path)
    for _ in range(2):
        with files.lock(path):
            assert files.is_locked(path)
            with pytest.raises(files.Locked, match="lock"), files.lock(path):
                raise AssertionError("held twice")
        assert not files.is_locked(path)


def test_lock_waits_for_another_process(lock_in_child, caplog):
    path, _ = lock_in_child(0.5)
    with pytest.raises(files.Locked), files.lock(path):
        pass
    with pytest.raises(files.Locked), files.lock(path, 0.1):
        pass
    with caplog.at_level(logging.INFO), files.lock(path, None, waiting="please wait"):
        assert caplog.messages == ["please wait"]


def test_lock_ends_with_the_process_that_is_killed(lock_in_child):
    path, process = lock_in_child()
    assert files.is_locked(path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with files.lock(path):
        pass


def test_lock_is_not_inherited_by_a_forked_child(tmp_path, in_child):
    path = tmp_path / "lock"
    with files.lock(path):
        in_child(lambda: time.sleep(5))
    with files.lock(path):
        pass


@pytest.mark.parametrize("error", [OSError(37, "No locks available"), OSError(38, "Function not implemented")])
def test_lock_on_a_disk_without_locks_is_an_error(tmp_path, monkeypatch, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(UserError, match=error.strerror) as found, files.lock(tmp_path / "lock"):
        pass
    assert not isinstance(found.value, files.Locked)
    assert not files.is_locked(tmp_path / "lock")


def test_lock_on_a_read_only_disk_is_an_error(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UserError, match="Read-only file system"), files.lock(tmp_path / "lock"):
        pass


def test_lock_has_one_home():
    source = Path(complementary.__path__[0])
    found = [p.name for p in source.rglob("*.py") if {"fcntl", "filelock"} & set(p.read_text(encoding="utf-8").split())]
    assert found == ["files.py"]
    assert filelock.has_fcntl
