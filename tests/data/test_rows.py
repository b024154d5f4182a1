import pytest
import torch

from complementary.data.rows import Rows, rows_of
from complementary.files import fingerprint_rows

SOURCE = torch.arange(60, dtype=torch.uint8).view(20, 3)
SOME = torch.tensor([5, 0, 19, 7, 7])


@pytest.mark.parametrize("index", [None, SOME], ids=["all", "some"])
def test_rows_are_like_the_tensor_that_they_stand_for(index):
    rows, tensor = Rows(SOURCE, index), SOURCE if index is None else SOURCE[index]
    assert torch.equal(rows.whole(), tensor)
    assert (len(rows), rows.shape, rows.ndim, rows.dtype) == (len(tensor), tensor.shape, tensor.ndim, tensor.dtype)
    assert rows.nbytes == tensor.nbytes
    assert fingerprint_rows(rows) == fingerprint_rows(tensor)
    for count in (1, 2, 100):
        assert [part.tolist() for part in rows.split(count)] == [part.tolist() for part in tensor.split(count)]
    places = torch.tensor([3, 1])
    assert torch.equal(rows.source[rows.positions(places)], tensor[places])
    for part in (places, slice(1, None, 2), slice(0)):
        assert torch.equal(rows.take(part).whole(), tensor[part])


def test_rows_are_not_copied_before_use():
    rows = Rows(SOURCE, SOME).take(slice(0, 2)).to(torch.device("cpu"))
    assert rows.source is SOURCE
    assert Rows(SOURCE).whole() is SOURCE


def test_rows_on_another_device_are_a_copy_of_only_these():
    rows = Rows(SOURCE, SOME).to(torch.device("meta"))
    assert rows.index is None
    assert rows.source.shape == (5, 3)
    assert rows.to(torch.device("meta")) is rows


def test_rows_of_a_whole_source_need_no_index():
    assert rows_of(SOURCE, torch.arange(20)).index is None
    assert rows_of(SOURCE, torch.arange(19)).index is not None
    assert rows_of(SOURCE, torch.arange(20).flip(0)).index is not None


def test_rows_within_a_size_are_at_least_one():
    assert Rows(SOURCE).rows_within(1) == 1
    assert Rows(SOURCE).rows_within(9) == 3
