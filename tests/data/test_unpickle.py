import contextlib
import os
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from complementary.data.unpickle import loads
from complementary.errors import UserError


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_and_arrays_are_read(protocol):
    value = {
        "data": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "labels": [1, 2],
        "name": "x",
        "flag": None,
        "part": np.float32(0.5),
        "names": [b"abc"],
    }
    found = loads(pickle.dumps(value, protocol), "file")
    assert np.array_equal(found["data"], value["data"])
    assert found["part"] == 0.5
    assert {k: found[k] for k in ("labels", "name", "flag", "names")} == {
        "labels": [1, 2],
        "name": "x",
        "flag": None,
        "names": [b"abc"],
    }


def test_arrays_of_old_numpy_are_read():
    new = pickle.dumps(np.arange(3), 2)
    old = new.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert old != new
    assert loads(old, "file").tolist() == [0, 1, 2]


def test_python_2_strings_are_latin_1():
    python2 = b"(dp0\nS'data'\np1\nS'\\xff\\x00'\np2\ns."
    assert loads(python2, "file") == {"data": "\xff\x00"}


class Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("function", [os.system, eval, exec, subprocess.run, Path, getattr, __import__])
def test_code_is_refused_before_it_runs(function, tmp_path):
    mark = tmp_path / "ran"
    evil = pickle.dumps({"images": Evil(function, f"touch {mark}")})
    with pytest.raises(UserError, match="could run code"):
        loads(evil, "clcifar10.pkl")
    assert not mark.exists()


def test_other_codecs_are_refused():
    with pytest.raises(UserError, match="bytes written as 'zlib'"):
        loads(b"c_codecs\nencode\n(Vx\nVzlib\ntR.", "file")


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_one_sentence(content):
    with contextlib.suppress(UserError):
        loads(content, "file")
