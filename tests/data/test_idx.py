import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from complementary.data.idx import decode_idx, parse_idx
from complementary.errors import UserError


@given(array=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)))
def test_every_array_comes_back(array, make_idx):
    assert np.array_equal(parse_idx(make_idx(array), "x", array.ndim), array)


@given(content=st.binary(max_size=40), dimensions=st.integers(1, 3))
def test_any_bytes_give_an_array_or_one_sentence(content, dimensions):
    with contextlib.suppress(UserError):
        assert parse_idx(content, "x", dimensions).ndim == dimensions


def test_a_file_cut_short_is_refused(make_idx):
    with pytest.raises(UserError, match="its header promises 28: get the file again"):
        parse_idx(make_idx(np.zeros((3, 2, 2), np.uint8))[:-1], "train-images", 3)


def test_labels_where_images_are_wanted(make_idx):
    with pytest.raises(UserError, match="begins with 00 00 08 01, wanted 00 00 08 03"):
        parse_idx(make_idx(np.zeros(20, np.uint8)), "x", 3)


def test_decode_names_the_splits(make_idx):
    files = {
        "train-images-idx3-ubyte": make_idx(np.full((2, 3, 4), 7, np.uint8)),
        "t10k-labels-idx1-ubyte": make_idx(np.array([1, 0, 2], np.uint8)),
    }
    arrays = decode_idx(files)
    assert arrays["train/inputs"].shape == (2, 1, 3, 4)
    assert arrays["test/truth"].dtype == np.int64
    assert arrays["test/truth"].tolist() == [1, 0, 2]
