"""Learning from features: the encoder stays as it is, and new examples go the same way."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from complementary import ComplementaryClassifier, files
from complementary.clusters import features
from complementary.clusters.assign import features_of
from complementary.clusters.features import Source, find_body
from complementary.config import Config
from complementary.data import Dataset, Split, load
from complementary.encoders.backbone import build_body, describe
from complementary.engine.backend import together
from complementary.errors import UserError
from complementary.training import predict
from complementary.training.frozen import FrozenEncoder, look
from complementary.training.run import run
from complementary.training.task import prepare, training_truth

FEATURES = Config.of(inputs="features", encoder="random", mix="none", epochs=2, batch=128)


def lens(kind="cnn", shape=(1, 8, 8), max_pool=True):
    body, _ = build_body(kind, shape, 3, max_pool)
    return FrozenEncoder(body, shape, torch.full(shape[:1], 0.4), torch.full(shape[:1], 0.2))


def test_the_network_is_shown_unit_features_of_the_same_examples():
    config = FEATURES.with_(long_tail=5.0, seed=2)
    raw, seen = prepare(config.with_(inputs="raw")), prepare(config)
    body, dataset = find_body(Source("random", seed=2), load("digits")), load("digits")
    mean, std = torch.tensor(dataset.mean), torch.tensor(dataset.std)
    for images, vectors in ((raw.inputs, seen.inputs), (raw.held_inputs, seen.held_inputs)):
        torch.testing.assert_close(vectors, FrozenEncoder(body, (1, 8, 8), mean, std)(images))
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(images)))
    assert torch.equal(seen.excluded, raw.excluded)
    assert seen.test_inputs.shape == (360, 128)


def test_features_are_standardised_by_those_of_the_training_examples():
    seen = look(FEATURES, load("digits"), torch.arange(700))
    scaled = (seen.source - seen.mean) / seen.std
    torch.testing.assert_close(scaled.mean(0), torch.zeros(128), atol=1e-4, rtol=0)
    assert bool((seen.std > 0).all()), "a feature that never changes must not divide by nothing"


def test_clusters_and_labels_do_not_depend_on_what_the_network_is_shown():
    config = FEATURES.with_(mix="icm", clusters=5, restarts=1)
    raw, seen = prepare(config.with_(inputs="raw")), prepare(config)
    assert torch.equal(raw.group, seen.group)
    assert raw.facts == seen.facts


def mirrored_digits():
    """The digits, as a set whose pictures may be mirrored."""
    return dataclasses.replace(load("digits"), flip=True)


def test_mirrored_features_are_the_mean_of_both_and_do_not_tell_left_from_right(tmp_path):
    plain = lens("resnet18", (3, 16, 16))
    both = dataclasses.replace(plain, mirror=True)
    images = torch.randint(256, (6, 3, 16, 16), dtype=torch.uint8)
    torch.testing.assert_close(both(images), F.normalize(plain(images) + plain(images.flip(-1))))
    torch.testing.assert_close(both(images), both(images.flip(-1)))
    assert not torch.allclose(plain(images), plain(images.flip(-1)), atol=1e-3)
    both.write(tmp_path / "encoder.safetensors")
    torch.testing.assert_close(FrozenEncoder.read(tmp_path / "encoder.safetensors")(images), both(images))


def test_new_examples_are_mirrored_as_the_training_examples_were():
    dataset = mirrored_digits()
    seen = look(FEATURES.with_(mirror=True), dataset, torch.arange(50))
    torch.testing.assert_close(seen.lens(dataset.train.inputs[:50]), seen.source)
    torch.testing.assert_close(seen.lens(dataset.test.inputs), seen.test)
    assert not torch.allclose(look(FEATURES, dataset, torch.arange(50)).source, seen.source, atol=1e-3)


def test_kept_features_are_not_taken_for_mirrored_ones():
    dataset, chosen = mirrored_digits(), torch.arange(50)
    one, other = (features.identity(Source("random", mirror=mirror), dataset, chosen) for mirror in (False, True))
    assert one != other


@pytest.mark.parametrize(
    ("options", "flip", "match"),
    [
        ({"encoder": "pixels"}, True, "look at images"),
        ({"encoder": "embeddings:z.npy"}, True, "look at images"),
        ({"encoder": "random"}, False, "mirrored"),
        ({"encoder": "random", "flip": False}, True, "contradicts"),
    ],
)
def test_what_cannot_be_mirrored_is_refused(options, flip, match):
    dataset = dataclasses.replace(load("digits"), flip=flip)
    with pytest.raises(UserError, match=match):
        features_of(Config.of(mirror=True, **options), dataset, torch.arange(20))


@pytest.mark.parametrize("kind", ["cnn", "resnet18"])
@pytest.mark.parametrize("max_pool", [True, False])
def test_a_lens_is_kept_and_comes_back(tmp_path, kind, max_pool):
    one = lens(kind, (3, 16, 16), max_pool)
    one.write(tmp_path / "encoder.safetensors")
    other = FrozenEncoder.read(tmp_path / "encoder.safetensors")
    images = torch.randint(256, (5, 3, 16, 16), dtype=torch.uint8)
    assert torch.equal(one(images), other(images))
    assert other.shape == (3, 16, 16)
    assert describe(other.body) == {"body": kind, "max_pool": max_pool or kind == "cnn"}


def test_runs_share_one_file_on_the_disk_and_each_is_whole_by_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    one, images = lens(), load("digits").test.inputs
    for name in ("a", "b"):
        one.write(tmp_path / name)
    assert (tmp_path / "a").stat().st_ino == (tmp_path / "b").stat().st_ino
    lens(shape=(3, 8, 8)).write(tmp_path / "other")
    (shared,) = [path for path in (tmp_path / "cache" / "stages").iterdir() if path.samefile(tmp_path / "a")]
    shared.unlink()
    shared.write_bytes(b"damaged")  # a new file of that name: the runs keep theirs
    one.write(tmp_path / "c")
    for name in ("a", "b", "c"):
        assert torch.equal(FrozenEncoder.read(tmp_path / name)(images), one(images))
    monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError))
    one.write(tmp_path / "d")
    assert (tmp_path / "d").read_bytes() == (tmp_path / "a").read_bytes()


def test_auto_is_a_linear_layer_and_the_run_predicts_pictures(tmp_path):
    result = run(FEATURES, tmp_path / "run", device="cpu")
    model = predict.load(tmp_path / "run", "last")
    dataset = load("digits")
    assert list(dict(model.network.named_parameters())) == ["fc.weight", "fc.bias"]
    assert model.shape == (1, 8, 8)
    found = (model(dataset.test.inputs).argmax(1) == dataset.test.truth).double().mean()
    assert float(found) == result["accuracy_last"]


def test_a_resumed_run_is_the_same_run(tmp_path):
    class Killed(Exception):
        pass

    def kill(job):
        if job.steps_before() == 13:
            raise Killed

    with pytest.raises(Killed):
        run(FEATURES, tmp_path / "a", device="cpu", checkpoint_seconds=0, progress=kill)
    resumed, straight = run(FEATURES, tmp_path / "a", device="cpu", resume=True), run(FEATURES, device="cpu")
    assert resumed["accuracy_last"] == straight["accuracy_last"]


def test_the_classifier_sees_new_examples_through_the_same_encoder():
    dataset = load("digits")
    not_y = (dataset.train.truth.numpy() + np.arange(1437) % 9 + 1) % 10
    images = dataset.train.inputs.numpy()
    model = ComplementaryClassifier(inputs="features", encoder="random", mix="none", epochs=3, device="cpu")
    probabilities = model.fit(images, not_y).predict_proba(images[:7])
    p = model.trainer_.task
    vectors = FrozenEncoder(find_body(Source("random"), dataset), (1, 8, 8), p.lens.mean, p.lens.std)(
        dataset.train.inputs[:7]
    )
    wanted = model.trainer_.model((vectors - p.mean) / p.std).softmax(1)
    np.testing.assert_allclose(probabilities, wanted.detach().numpy(), atol=1e-5)
    with pytest.raises(UserError, match=r"examples of shape \[1, 9, 9\], but the fit was on \[1, 8, 8\]"):
        model.predict(np.zeros((2, 9, 9), np.uint8))


def test_an_encoder_of_ours_is_a_file_like_any_other(tmp_path):
    """``file:`` takes it whatever kind of network it is; weights in half precision are weights."""
    one = lens()
    half = {k: v.half() if v.is_floating_point() else v for k, v in one.body.state_dict().items()}
    files.write_checkpoint(tmp_path / "half.safetensors", half, {"shape": [1, 8, 8], **describe(one.body)})
    body = find_body(Source(f"file:{tmp_path / 'half.safetensors'}"), load("digits"))
    images = load("digits").test.inputs
    torch.testing.assert_close(
        FrozenEncoder(body, (1, 8, 8), one.mean, one.std)(images), one(images), atol=2e-3, rtol=0
    )


@pytest.mark.parametrize("encoder", ["pixels", "embeddings:z.npy"])
def test_what_is_no_encoder_is_refused_in_a_sentence(encoder):
    with pytest.raises(UserError, match="--inputs features needs an encoder") as caught:
        prepare(FEATURES.with_(encoder=encoder))
    assert "--data FILE.npz" in str(caught.value)


def test_features_of_many_images_are_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path))
    monkeypatch.setattr(features, "LONG", 1)
    first = prepare(FEATURES)
    assert capsys.readouterr().err == "embedding 1,437 images by random\nembedding 360 images by random\n"
    monkeypatch.setattr(features, "features", None)  # would fail if called
    second = prepare(FEATURES)
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.test_inputs, second.test_inputs)
    assert capsys.readouterr().err == ""
    assert len(list((tmp_path / "stages").glob("features-*"))) == 2
    with pytest.raises(TypeError):
        prepare(FEATURES.with_(seed=1))  # another random encoder


def test_vectors_have_no_features_and_are_told_so():
    dataset = Dataset("v", Split(torch.randn(40, 2), torch.arange(40) % 2), None, ("a", "b"), (0.0, 0.0), (1.0, 1.0))
    with pytest.raises(UserError, match="holds vectors, and --inputs features needs images; leave it out"):
        prepare(FEATURES.with_(batch=8), dataset)


def test_threads_that_keep_the_same_encoder_never_see_half_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    one = lens()

    def write(i):
        one.write(tmp_path / f"{i}.safetensors")
        return files.is_whole(tmp_path / f"{i}.safetensors")

    for turn in range(10):
        names = [f"{turn}-{i}" for i in range(4)]
        for path in (tmp_path / "cache").rglob("lens-*.safetensors"):
            path.unlink()
        assert together([lambda n=n: write(n) for n in names], torch.device("cpu")) == [True] * 4


def test_truth_is_as_far_away_as_ever():
    truth = training_truth(FEATURES)
    task = prepare(FEATURES)
    assert task.excluded[torch.arange(len(truth)), truth].sum() == 0
