"""Encoders of every kind; heads and bodies are narrow, so that pretraining takes a fraction of a second."""

import functools
import os
import pickle
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import complementary.clusters.features
from complementary import files, networks
from complementary.clusters import features as embedding
from complementary.clusters.assign import clusters_of, points_of
from complementary.clusters.features import Source, embed, embed_test, find_body, pretrained, read_embeddings
from complementary.config import Config, PretrainConfig
from complementary.data import Dataset, Split, load
from complementary.data.selection import select
from complementary.encoders.objectives import OBJECTIVES
from complementary.encoders.backbone import features
from complementary.encoders.pretrain import chosen_images, pretrain
from complementary.errors import UserError

DIGITS = load("digits")
SOME = torch.tensor([5, 3, 1000, 17, 42])
ALL = torch.arange(len(DIGITS.train))
COLOUR = Dataset(
    "colour",
    Split(torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))),
    None,
    ("a", "b"),
    (0.4, 0.5, 0.6),
    (0.2, 0.3, 0.25),
)
VECTORS = Dataset("blobs", Split(torch.randn(40, 3)), None, ("a", "b"), (0.0,) * 3, (1.0,) * 3)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Narrow networks, and no test sees the user's cache."""
    for name, width in (("simsiam", {"bottleneck": 8}), ("byol", {"out": 16}), ("mocov3", {"out": 16})):
        monkeypatch.setitem(OBJECTIVES, name, functools.partial(OBJECTIVES[name], width=32, **width))
    monkeypatch.setattr(networks, "SmallCNN", functools.partial(networks.SmallCNN, width=8))
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def from_(encoder, **options):
    return Source(encoder, device="cpu", **{"pretrain_epochs": 2} | options)


def is_unit(z):
    assert z.dtype == torch.float32
    torch.testing.assert_close(z.norm(dim=1), torch.ones(len(z)))
    return True


# --- without training ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", [DIGITS, VECTORS], ids=["images", "vectors"])
def test_pixels_are_the_flat_inputs_as_unit_vectors(dataset):
    chosen = torch.tensor([7, 2, 30])
    z = embed(from_("pixels"), dataset, chosen)
    assert is_unit(z)
    for row, i in zip(z, chosen.tolist(), strict=True):
        flat = dataset.train.inputs[i].flatten().float()
        torch.testing.assert_close(row, flat / flat.norm())


def test_random_features_depend_on_the_seed_only():
    torch.manual_seed(4)
    first, again, other = (embed(from_("random", seed=s), DIGITS, SOME) for s in (0, 0, 1))
    assert is_unit(first)
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, atol=0.05)


def test_random_is_a_resnet_for_larger_images():
    assert isinstance(find_body(from_("random"), COLOUR), networks.ResNet18)
    assert embed(from_("random"), COLOUR, torch.tensor([4, 1])).shape == (2, 512)


def test_embeddings_follow_the_subset_and_become_unit_vectors(tmp_path):
    table = np.random.default_rng(0).normal(size=(1437, 4)) * 9
    for dtype in (np.float64, np.float32, np.float16, np.int64):
        np.save(tmp_path / "z.npy", table.astype(dtype))
        z = embed(from_(f"embeddings:{tmp_path / 'z.npy'}"), DIGITS, SOME)
        assert is_unit(z)
        wanted = F.normalize(torch.from_numpy(table.astype(dtype)).float())[SOME]
        torch.testing.assert_close(z, wanted)


def test_embeddings_serve_vectors_too(tmp_path):
    np.save(tmp_path / "z.npy", np.eye(40))
    assert torch.equal(embed(from_(f"embeddings:{tmp_path / 'z.npy'}"), VECTORS, torch.tensor([3])), torch.eye(40)[[3]])


def save_archive(path):
    with path.open("wb") as file:
        np.savez(file, z=np.ones((1437, 2)))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda path: np.save(path, np.ones(1437)),
            r"have shape \[1437\]; wanted one row per training example, \[1437",
        ),
        (lambda path: np.save(path, np.ones((1436, 3))), r"have shape \[1436, 3\]"),
        (lambda path: np.save(path, np.array([{}] * 1437)), "cannot be read as a .npy table of numbers"),
        (lambda path: np.save(path, np.array([["a"]] * 1437)), "cannot be read as a .npy table of numbers"),
        (lambda path: path.write_text("1,2\n3,4\n"), "cannot be read as a .npy table of numbers"),
        (lambda path: path.write_bytes(b""), "cannot be read as a .npy table of numbers"),
        (lambda path: path.write_bytes(b"PK\x03\x04 and no more"), "cannot be read as a .npy table of numbers"),
        (save_archive, "cannot be read as a .npy table of numbers"),
        (lambda path: path.mkdir(), "cannot be read"),
        (lambda path: None, "cannot be read"),
    ],
    ids=["1-d", "short", "objects", "text", "csv", "empty", "half a zip", "npz", "folder", "nothing"],
)
def test_embeddings_that_are_no_table_are_refused(tmp_path, make, said):
    make(tmp_path / "z.npy")
    with pytest.raises(UserError, match=said) as caught:
        read_embeddings(tmp_path / "z.npy", 1437)
    assert str(tmp_path / "z.npy") in str(caught.value)


def test_a_nan_among_embeddings_does_not_become_a_cluster(tmp_path):
    table = np.ones((1437, 2))
    table[9] = np.nan
    np.save(tmp_path / "z.npy", table)
    config = Config.of(encoder=f"embeddings:{tmp_path / 'z.npy'}", clusters=3)
    with pytest.raises(UserError, match="hold NaN or infinity; check the embeddings"):
        clusters_of(config, DIGITS, ALL)


@pytest.mark.parametrize("encoder", ["clip", "", "pixels:x", "random:3", "run:", "file:", "embeddings:", "SimSiam"])
def test_an_unknown_encoder_lists_the_known_ones(encoder):
    with pytest.raises(UserError) as caught:
        embed(from_(encoder), DIGITS, SOME)
    assert str(caught.value) == (
        f"The encoder {encoder!r} is not known; use one of: pixels, random, simsiam, byol, mocov3, run:FOLDER, "
        "file:WEIGHTS, embeddings:Z.npy."
    )


@pytest.mark.parametrize("encoder", ["random", "simsiam", "run:x", "file:x.pt"])
def test_vectors_have_no_encoder(encoder, cache):
    with pytest.raises(UserError, match=r"The set blobs holds vectors; encoders learn from images. Use --encoder pix"):
        embed(from_(encoder), VECTORS, torch.arange(4))
    assert not cache.exists()


# --- run:FOLDER ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    pretrain(PretrainConfig(epochs=2, batch=256, seed=3), tmp_path / "run", device="cpu")
    return tmp_path / "run"


def test_the_encoder_of_a_run_is_applied(folder):
    z = embed(from_(f"run:{folder}"), DIGITS, SOME)
    assert is_unit(z)
    body = networks.SmallCNN((1, 8, 8), 1)
    del body.fc
    body.load_state_dict(files.read_checkpoint(folder / "encoder.safetensors")[0])
    wanted = features(body, DIGITS.train.inputs[SOME], torch.tensor(DIGITS.mean), torch.tensor(DIGITS.std))
    torch.testing.assert_close(z, wanted)
    torch.testing.assert_close(embed(from_(f"run:{folder}"), DIGITS, ALL)[SOME], z, atol=1e-5, rtol=0)
    assert not torch.allclose(z, embed(from_("random", seed=3), DIGITS, SOME), atol=1e-3), "it learnt something"


def test_an_encoder_for_another_shape_is_refused(folder):
    with pytest.raises(UserError, match=r"was pretrained on images of shape \[1, 8, 8\], but these are \[3, 16, 16\]"):
        embed(from_(f"run:{folder}"), COLOUR, torch.arange(2))


def test_a_folder_without_an_encoder_is_refused(folder, tmp_path):
    with pytest.raises(
        UserError, match=r"nowhere holds no encoder \(encoder.safetensors\); give a folder that cll pretrain wrote"
    ):
        embed(from_(f"run:{tmp_path / 'nowhere'}"), DIGITS, SOME)
    path = folder / "encoder.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UserError, match="was altered"):
        embed(from_(f"run:{folder}"), DIGITS, SOME)
    files.write_checkpoint(path, {"assignment": SOME}, {"version": 1})
    with pytest.raises(UserError, match="is not an encoder; give a folder that cll pretrain wrote"):
        embed(from_(f"run:{folder}"), DIGITS, SOME)


# --- file:WEIGHTS -------------------------------------------------------------------------------------


def torchvision_names():
    """The state dict of torchvision's resnet18, by name."""

    def norm(name):
        return [f"{name}.{part}" for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]

    names = ["conv1.weight", *norm("bn1"), "fc.weight", "fc.bias"]
    for layer in range(1, 5):
        for block in range(2):
            place = f"layer{layer}.{block}"
            names += [f"{place}.conv1.weight", *norm(f"{place}.bn1"), f"{place}.conv2.weight", *norm(f"{place}.bn2")]
        names += [f"layer{layer}.0.downsample.0.weight", *norm(f"layer{layer}.0.downsample.1")] if layer > 1 else []
    return set(names)


@pytest.fixture(scope="module")
def resnet():
    """With a last layer for 1,000 classes, as such files have, and batch-norm statistics of its own."""
    network = networks.build("resnet18", (3, 16, 16), 1000, seed=5)
    network.train()(COLOUR.train.inputs.float() / 255)
    return network


@pytest.fixture
def weights(resnet):
    return dict(resnet.state_dict())


def put(path, tensors):
    save_file(tensors, path) if path.suffix == ".safetensors" else torch.save(tensors, path)
    return from_(f"file:{path}")


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "pth"])
@pytest.mark.parametrize("last", [True, False], ids=["with fc", "without fc"])
def test_resnet_weights_with_torchvisions_names_are_taken(tmp_path, resnet, weights, suffix, last):
    assert set(weights) == torchvision_names()
    if not last:
        del weights["fc.weight"], weights["fc.bias"]
    chosen = torch.tensor([3, 0])
    z = embed(put(tmp_path / f"w.{suffix}", weights), COLOUR, chosen)
    mean, std = torch.tensor(COLOUR.mean), torch.tensor(COLOUR.std)
    assert is_unit(z)
    torch.testing.assert_close(z, features(resnet, COLOUR.train.inputs[chosen], mean, std))


def test_a_long_embedding_says_how_far_it_is(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    tell = embedding.teller("embedded", 1000)
    for clock[0], done in ((5.0, 100), (16.0, 250), (20.0, 400), (32.0, 500), (64.0, 1000)):
        tell(done)
    assert capsys.readouterr().err == (
        "embedded 250 of 1,000 images, about 0:00:48 left\nembedded 500 of 1,000 images, about 0:00:32 left\n"
    )


def test_a_classifier_of_ours_is_an_encoder_without_its_last_layer(tmp_path, resnet, weights):
    record = {"model": "resnet18", "shape": [3, 32, 32], "max_pool": resnet.max_pool}
    files.write_checkpoint(tmp_path / "last.safetensors", weights, record)
    files.write_checkpoint(tmp_path / "other.safetensors", weights, record | {"max_pool": not resnet.max_pool})
    other = find_body(Source(f"file:{tmp_path / 'other.safetensors'}"), COLOUR)
    assert other.max_pool is not resnet.max_pool
    z = embed(Source(f"file:{tmp_path / 'last.safetensors'}"), COLOUR, torch.tensor([3, 0]))
    mean, std = torch.tensor(COLOUR.mean), torch.tensor(COLOUR.std)
    torch.testing.assert_close(z, features(resnet, COLOUR.train.inputs[[3, 0]], mean, std))


def without_one(tensors):
    del tensors["layer3.0.downsample.1.running_var"], tensors["bn1.bias"]


def with_more(tensors):
    tensors |= {"module.conv1.weight": torch.ones(1), "head.fc.bias": torch.ones(2)}


def with_another_stem(tensors):
    tensors["conv1.weight"] = torch.zeros(64, 3, 7, 7)


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([without_one], "(missing: bn1.bias, layer3.0.downsample.1.running_var)"),
        ([with_more], "(not expected: head.fc.bias, module.conv1.weight)"),
        ([with_another_stem], "(of another shape: conv1.weight [64, 3, 7, 7] instead of [64, 3, 3, 3])"),
        (
            [without_one, with_more, with_another_stem],
            "(missing: bn1.bias, layer3.0.downsample.1.running_var; not expected: head.fc.bias, module.conv1.weight; "
            "of another shape: conv1.weight [64, 3, 7, 7] instead of [64, 3, 3, 3])",
        ),
    ],
    ids=["missing", "unexpected", "shape", "all three"],
)
def test_weights_that_do_not_fit_are_listed_by_name(tmp_path, weights, suffix, changes, said):
    for change in changes:
        change(weights)
    with pytest.raises(UserError) as caught:
        embed(put(tmp_path / f"w.{suffix}", weights), COLOUR, torch.arange(2))
    assert (
        str(caught.value)
        == f"The weights in {tmp_path / f'w.{suffix}'} do not fit the network {said}; nothing was loaded."
    )


def test_weights_for_colour_do_not_fit_grey_images(tmp_path, weights):
    grey = replace(COLOUR, train=Split(COLOUR.train.inputs[:, :1].contiguous()), mean=(0.5,), std=(0.5,))
    with pytest.raises(UserError, match=r"conv1.weight \[64, 3, 3, 3\] instead of \[64, 1, 3, 3\]"):
        embed(put(tmp_path / "w.pt", weights), grey, torch.arange(2))


class Trap:
    """Leaves a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.mark.parametrize("how", ["torch", "torch, old format", "pickle"])
def test_code_in_a_pickle_does_not_run(tmp_path, weights, how):
    path, mark = tmp_path / "w.pt", tmp_path / "it ran"
    small = {"conv1.weight": weights["conv1.weight"], "trap": Trap(mark)}
    if how == "pickle":
        path.write_bytes(pickle.dumps(small))
    else:
        torch.save(small, path, _use_new_zipfile_serialization=how == "torch")
    with pytest.raises(UserError, match=r"w.pt is not a plain state dict and was not loaded"):
        embed(from_(f"file:{path}"), COLOUR, torch.arange(2))
    assert not mark.exists()
    pickle.loads(pickle.dumps(Trap(mark)))
    assert mark.exists(), "the trap works"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (torch.ones(3), "is not a state dict: it holds a Tensor, not tensors by name"),
        ([torch.ones(3)], "is not a state dict: it holds a list"),
        ({0: torch.ones(3)}, "is not a state dict: it holds a dict, not tensors by name"),
        ({"state_dict": {"bn1.bias": torch.ones(64)}, "epoch": 3}, "state_dict, epoch is no tensor; save the state"),
        ({"conv1.weight": 3.0}, "conv1.weight is no tensor"),
        ({}, "do not fit the network (missing: bn1.bias"),
    ],
    ids=["tensor", "list", "numbers", "wrapped", "float", "empty"],
)
def test_a_pt_file_that_holds_something_else_is_one_sentence(tmp_path, content, said):
    with pytest.raises(UserError) as caught:
        embed(put(tmp_path / "w.pt", content), COLOUR, torch.arange(2))
    assert said in str(caught.value)


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize("content", [None, b"", b"weights", b"PK\x03\x04 and no more"], ids=str)
def test_weights_that_cannot_be_read_are_one_sentence(tmp_path, suffix, content):
    path = tmp_path / f"w.{suffix}"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"w.{suffix} (cannot be read|is not a)"):
        embed(from_(f"file:{path}"), COLOUR, torch.arange(2))


# --- simsiam, byol, mocov3: pretrained once -----------------------------------------------------------


def stages(cache):
    return sorted((cache / "stages").iterdir())


@pytest.mark.parametrize("encoder", OBJECTIVES)
def test_a_named_encoder_is_pretrained_once(cache, encoder):
    steps = []
    first = embed(from_(encoder), DIGITS, SOME, progress=steps.append)
    assert is_unit(first)
    assert len(steps) == 2 * (1437 // 512)
    (stage,) = stages(cache)
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in stage.iterdir() if p.name != ".lock"}
    assert "encoder.safetensors" in before
    again = embed(from_(encoder), DIGITS, SOME, progress=steps.append)
    assert torch.equal(first, again)
    assert len(steps) == 4, "not a step more"
    assert stages(cache) == [stage]
    assert before == {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in stage.iterdir() if p.name != ".lock"}
    assert torch.equal(first, embed(from_(f"run:{stage}"), DIGITS, SOME))


def test_other_settings_are_other_stages(cache):
    for options in ({}, {"seed": 1}, {"pretrain_epochs": 1}, {"long_tail": 2.0}):
        pretrained(from_("simsiam", **options), DIGITS)
    assert len(stages(cache)) == 4


def test_sets_of_one_name_with_other_images_do_not_share_an_encoder(cache):
    """Two files /a/photos.npz and /b/photos.npz are both called photos."""
    other = replace(DIGITS, train=replace(DIGITS.train, inputs=255 - DIGITS.train.inputs))
    first, second = (pretrained(from_("simsiam"), d) for d in (DIGITS, other))
    assert first != second
    a, b = ((folder / "encoder.safetensors").read_bytes() for folder in (first, second))
    assert a != b


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_an_interrupted_stage_goes_on_where_it_was(cache, monkeypatch, tmp_path, stop):
    monkeypatch.setattr(complementary.clusters.features, "pretrain", functools.partial(pretrain, checkpoint_seconds=0))
    seen = []

    def interrupt(job):
        seen.append((job.epoch, job.step_in_epoch))
        if len(seen) == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed(from_("byol"), DIGITS, SOME, progress=interrupt)
    (stage,) = stages(cache)
    assert not (stage / "encoder.safetensors").exists()
    z = embed(from_("byol"), DIGITS, SOME, progress=interrupt)
    assert seen == [(0, 1), (1, 0), (1, 1), (2, 0)], "each step was taken once"
    names = ("encoder.safetensors", "metrics.jsonl")
    resumed = [(stage / name).read_bytes() for name in names]
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "another"))
    assert torch.equal(z, embed(from_("byol"), DIGITS, SOME))
    assert resumed == [(stages(tmp_path / "another")[0] / name).read_bytes() for name in names]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"long_tail": 10.0, "seed": 3},
        {"long_tail": 10.0, "head": 100, "seed": 1},
        {"long_tail": 10.0, "draws": "paper"},
        {"labels": "setup-1:10", "seed": 2},
        {"labels": "setup-3:5:10", "seed": 2},
        {"labels": "setup-2:5"},
    ],
    ids=str,
)
def test_a_stage_sees_exactly_the_images_of_its_run(monkeypatch, options):
    asked = []

    def record(config, folder, *, dataset, **_):
        asked.append(dataset.train.inputs[chosen_images(config, dataset)])
        raise InterruptedError

    monkeypatch.setattr(complementary.clusters.features, "pretrain", record)
    config = Config.of(encoder="simsiam", **options)
    chosen, _, _ = select(config, DIGITS)
    with pytest.raises(InterruptedError):
        points_of(config, DIGITS, chosen)
    assert torch.equal(asked[0], DIGITS.train.inputs[chosen])


def test_a_subset_smaller_than_a_usual_batch_is_pretrained_in_one_of_its_own_size(cache):
    config = Config.of(encoder="simsiam", pretrain_epochs=1, long_tail=100.0)
    chosen, _, _ = select(config, DIGITS)
    assert len(chosen) == 326
    z = points_of(config, DIGITS, chosen)
    assert z.shape == (326, 32)
    assert is_unit(z)
    assert "batch = 326\n" in (stages(cache)[0] / "config.toml").read_text()


def test_the_second_process_waits_for_the_pretraining_of_the_first(cache, tmp_path, in_child, capsys):
    begun = tmp_path / "begun"

    def slow(job):
        begun.touch()
        time.sleep(0.2)

    def refuse(job):
        raise AssertionError("it was trained again")

    child = in_child(lambda: pretrained(from_("simsiam"), DIGITS, slow))
    while not begun.exists():
        time.sleep(0.01)
    folder = pretrained(from_("simsiam"), DIGITS, refuse)
    assert os.waitpid(child, 0)[1] == 0
    assert (folder / "encoder.safetensors").exists()
    assert (
        capsys.readouterr().err
        == "another process is pretraining simsiam on the same images right now; waiting for it\n"
    )


def test_a_pretraining_that_is_killed_goes_on_in_the_process_that_waited(cache, tmp_path, in_child, monkeypatch):
    monkeypatch.setattr(complementary.clusters.features, "pretrain", functools.partial(pretrain, checkpoint_seconds=0))
    begun, steps = tmp_path / "begun", []

    def stuck(job):
        if job.epoch == 1:
            begun.touch()
            time.sleep(600)

    child = in_child(lambda: pretrained(from_("simsiam"), DIGITS, stuck))
    while not begun.exists():
        time.sleep(0.01)
    threading.Timer(0.3, os.kill, (child, signal.SIGKILL)).start()
    pretrained(from_("simsiam"), DIGITS, lambda job: steps.append((job.epoch, job.step_in_epoch)))
    os.waitpid(child, 0)
    assert steps == [(1, 1), (2, 0)]


# --- the test set -------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoder", ["pixels", "random"])
def test_the_test_set_is_embedded_like_the_training_set(encoder):
    swapped = replace(DIGITS, train=DIGITS.test, test=DIGITS.train)
    z = embed_test(from_(encoder), DIGITS)
    assert is_unit(z)
    torch.testing.assert_close(z, embed(from_(encoder), swapped, torch.arange(len(DIGITS.test))))


def test_there_may_be_no_test_vectors(tmp_path):
    np.save(tmp_path / "z.npy", np.ones((1437, 2)))
    assert embed_test(from_(f"embeddings:{tmp_path / 'z.npy'}"), DIGITS) is None
    assert embed_test(from_("pixels"), COLOUR) is None
