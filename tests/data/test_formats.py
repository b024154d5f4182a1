import numpy as np
import pytest

from complementary.data.formats import FORMATS
from complementary.errors import UserError


def test_a_matrix():
    arrays = FORMATS["matrix"].decode({"t.csv": b"0,1\n0.25,0.75\n"})
    assert np.array_equal(arrays["transition"], [[0, 1], [0.25, 0.75]])


@pytest.mark.parametrize("content", [b"a,b\n", b"1,2\n3\n", b"\xff\xfe"])
def test_a_broken_matrix(content):
    with pytest.raises(UserError, match=r"t\.csv is not a matrix of numbers"):
        FORMATS["matrix"].decode({"t.csv": content})


def test_every_format_says_what_it_needs():
    assert all(form.needs for form in FORMATS.values())
