"""Objectives that begin with an encoder that is there."""

import pytest
import torch

from complementary import files
from complementary.encoders.backbone import build_body, build_objective, describe
from complementary.errors import UserError

SHAPE = (3, 16, 16)


@pytest.fixture
def stored(tmp_path):
    """A folder as cll pretrain leaves it: a body of another seed, in half precision as shipped ones are."""
    body, _ = build_body("cnn", SHAPE, 7, True)
    tensors = {k: v.half() if v.is_floating_point() else v for k, v in body.state_dict().items()}
    record = describe(body) | {"shape": list(SHAPE), "mean": [0.5] * 3, "std": [0.2] * 3}
    files.write_checkpoint(tmp_path / "encoder.safetensors", tensors, record)
    return tmp_path, tensors


def new(encoder="simsiam", start=None, body="cnn", max_pool=True):
    return build_objective(encoder, body, SHAPE, 0, max_pool, start)


@pytest.mark.parametrize("encoder", ["simsiam", "byol", "mocov3"])
@pytest.mark.parametrize("kind", ["run", "file"])
def test_the_body_is_the_one_that_is_there_and_the_heads_are_new(stored, encoder, kind):
    folder, tensors = stored
    begun = new(encoder, f"run:{folder}" if kind == "run" else f"file:{folder / 'encoder.safetensors'}")
    for name, value in begun.body.state_dict().items():
        torch.testing.assert_close(value, tensors[name].to(value.dtype), rtol=0, atol=0)
        assert value.dtype == (torch.float32 if value.is_floating_point() else torch.int64)
    other = new(encoder).state_dict()
    assert any(not torch.equal(v, other[k]) for k, v in begun.state_dict().items() if k.startswith("body."))
    heads = {k: v for k, v in begun.state_dict().items() if "body." not in k and "slow" not in k and "copy" not in k}
    assert heads
    assert all(torch.equal(v, other[k]) for k, v in heads.items()), "new heads depend on the seed only"


@pytest.mark.parametrize("encoder", ["byol", "mocov3"])
def test_the_slow_copy_begins_where_the_body_does(stored, encoder):
    begun = new(encoder, f"run:{stored[0]}")
    weights = [p for p in begun.parameters() if not p.requires_grad]
    quick = {p.shape: p for p in begun.body.parameters()}
    assert any(p.shape in quick and torch.equal(p, quick[p.shape]) for p in weights)


def test_an_encoder_of_another_kind_is_refused(stored):
    start = f"run:{stored[0]}"
    with pytest.raises(UserError) as caught:
        new(start=start, body="resnet18", max_pool=False)
    assert str(caught.value) == (
        f"The encoder of --start {start} is --body cnn, but what is to learn is --body resnet18 without max-pool "
        "(--no-max-pool); make them alike."
    )


@pytest.mark.parametrize("start", ["simsiam", "run:", "file:", "nowhere", "embeddings:z.npy"])
def test_a_start_that_names_nothing_is_refused(start):
    with pytest.raises(UserError, match=r"The start .* is not known; use run:FOLDER .* or file:WEIGHTS"):
        new(start=start)


def test_a_start_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no encoder"):
        new(start=f"run:{tmp_path}")
