import json

import pytest
import torch
from safetensors.torch import load_file

from complementary import files
from complementary.clusters import assignments
from complementary.data import load
from complementary.errors import UserError

IMAGES = load("digits").train.inputs[:500]
VECTORS = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
HOME = torch.arange(500) % 20
MADE_BY = {"data": "digits", "encoder": "pixels", "head": None, "seed": 3}


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "clusters.safetensors"
    assignments.write(path, HOME, 20, IMAGES, MADE_BY)
    return path


@pytest.mark.parametrize(
    ("clusters", "dtype"), [(20, torch.uint8), (256, torch.uint8), (257, torch.int32), (500, torch.int32)]
)
@pytest.mark.parametrize("inputs", [IMAGES, VECTORS], ids=["images", "vectors"])
def test_what_was_written_is_read(tmp_path, clusters, dtype, inputs):
    home = torch.arange(500) % clusters
    assignments.write(tmp_path / "a", home, clusters, inputs, MADE_BY)
    assert load_file(tmp_path / "a")["assignment"].dtype == dtype
    for check in (inputs, inputs.clone(), None):
        found, record = assignments.read(tmp_path / "a", check)
        assert found.dtype == torch.int64
        assert torch.equal(found, home)
        assert record["clusters"] == clusters
        assert record["made_by"] == MADE_BY


def test_equal_content_gives_equal_bytes(tmp_path, stored):
    assignments.write(tmp_path / "again", HOME.clone(), 20, IMAGES.clone(), dict(reversed(MADE_BY.items())))
    assert (tmp_path / "again").read_bytes() == stored.read_bytes()
    assert len(stored.read_bytes()) < 1500, "a byte an example, and a header"


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (IMAGES[:499], "assigns 500 examples, but this run has 499; the data, long tail and seed must be those"),
        (torch.cat([IMAGES, IMAGES[:1]]), "assigns 500 examples, but this run has 501"),
        (IMAGES.flip(0), "made for other examples of the same number"),
        (torch.cat([IMAGES[1:2], IMAGES[:1], IMAGES[2:]]), "made for other examples of the same number"),
        (load("digits").train.inputs[500:1000], "made for other examples of the same number"),
        (IMAGES.view(500, 1, 4, 16), "made for other examples of the same number"),
        (IMAGES.view(torch.int8), "made for other examples of the same number"),
        (VECTORS, "made for other examples of the same number"),
    ],
    ids=["fewer", "more", "reversed", "two exchanged", "others", "reshaped", "retyped", "vectors"],
)
def test_other_examples_are_refused(stored, inputs, said):
    with pytest.raises(UserError, match=said) as caught:
        assignments.read(stored, inputs)
    assert str(stored) in str(caught.value)


def test_one_changed_pixel_is_noticed(stored):
    changed = IMAGES.clone()
    changed[321, 0, 5, 5] += 1
    with pytest.raises(UserError, match="made for other examples"):
        assignments.read(stored, changed)


def test_altered_and_cut_files_are_refused(stored):
    whole = stored.read_bytes()
    stored.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    with pytest.raises(UserError, match="was altered: its contents do not match their SHA-256"):
        assignments.read(stored, IMAGES)
    stored.write_bytes(whole.replace(b"pixels", b"quarks"))
    with pytest.raises(UserError, match="was altered"):
        assignments.read(stored, IMAGES)
    for cut in (0, 7, 100, len(whole) - 1):
        stored.write_bytes(whole[:cut])
        with pytest.raises(UserError, match="is not a whole file of this package"):
            assignments.read(stored, IMAGES)


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(UserError, match="of cluster assignments; make one"):
        assignments.read(path)
    path.write_text("cluster,example\n3,0\n")
    with pytest.raises(UserError, match="is not a whole file of this package"):
        assignments.read(path)
    for tensors, record in (
        ({"fc.weight": torch.ones(3)}, {"version": 1}),
        ({"assignment": HOME}, {}),
        ({"assignment": HOME}, {"version": 2}),
    ):
        files.write_checkpoint(path, tensors, record)
        with pytest.raises(UserError, match=r"holds no cluster assignment of version 1; make one with cll cluster"):
            assignments.read(path)


@pytest.mark.parametrize(("clusters", "home"), [(19, HOME), (50, torch.arange(500)), (20, HOME[:-1])])
def test_what_does_not_fit_is_not_written(tmp_path, clusters, home):
    """As bytes, the clusters 256 and 0 would be one."""
    with pytest.raises(UserError, match="do not fit 500 examples"):
        assignments.write(tmp_path / "a", home, clusters, IMAGES, MADE_BY)
    assert not (tmp_path / "a").exists()


def test_the_digest_is_of_the_bytes_in_order_whatever_the_layout():
    images = torch.randint(0, 256, (9000, 3, 2, 2), dtype=torch.uint8)
    last = images.contiguous(memory_format=torch.channels_last)
    assert last.stride() != images.stride()
    assert files.fingerprint_rows(last) == files.fingerprint_rows(images)
    assert files.fingerprint_rows(images[::2]) == files.fingerprint_rows(images[::2].clone())
    assert files.fingerprint_rows(images) != files.fingerprint_rows(images.flip(0))


# --- in place of the encoder --------------------------------------------------------------------------

SETTINGS = ("--long-tail", 3, "--clusters", 20, "--restarts", 1, "--seed", 3)
TRAINING = ("--mix", "micm", "--epochs", 2, "--batch", 128)


def test_training_by_a_file_is_training_by_clustering(cll, tmp_path):
    file = tmp_path / "clusters.safetensors"
    assert cll("cluster", *SETTINGS, "--out", file)[0] == 0
    assert cll("train", *SETTINGS, *TRAINING, "--out", tmp_path / "own")[0] == 0
    options = (*SETTINGS[:2], *SETTINGS[-2:])  # no word about how to cluster
    assert cll("train", *options, *TRAINING, "--assignments", file, "--out", tmp_path / "file")[0] == 0
    own, read = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("own", "file"))
    assert own == read
    assert len(own.splitlines()) == 2
    last = [files.read_checkpoint(tmp_path / name / "last.safetensors")[0] for name in ("own", "file")]
    assert all(torch.equal(last[0][k], last[1][k]) for k in last[0].keys() | last[1].keys())
    ratios = [json.loads((tmp_path / n / "result.json").read_text())["noise_ratio"] for n in ("own", "file")]
    assert ratios[0] == ratios[1] > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--seed", 4, "--long-tail", 3), "was made for other examples"),
        (("--seed", 3), "but this run has 1437"),
    ],
)
def test_training_on_other_examples_than_the_files_is_refused(cll, tmp_path, options, said):
    file = tmp_path / "clusters.safetensors"
    assert cll("cluster", *SETTINGS, "--out", file)[0] == 0
    status, _, error = cll("train", *options, *TRAINING, "--assignments", file, "--out", tmp_path / "x")
    assert status == 2
    assert said in error
    assert not (tmp_path / "x" / "result.json").exists()
