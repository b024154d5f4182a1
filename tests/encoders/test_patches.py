"""The encoder of patches: against a slow reference, repeatable, stored and exported without a change."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.linalg import eigh

from complementary import load
from complementary.config import Config
from complementary.data.dataset import Dataset, Split, moments
from complementary.data.rows import Rows
from complementary.encoders import patches
from complementary.encoders.frozen import FrozenEncoder
from complementary.encoders.patches import PatchNetwork, fit_patches, settings_for
from complementary.errors import UserError
from complementary.rng import generator
from complementary.training.export import example_inputs, export
from complementary.training.run import run


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(patches, "WORDS", 40)
    monkeypatch.setattr(patches, "FEATURES", 6)
    monkeypatch.setattr(patches, "SAMPLED", 3000)


def textures(count: int, shape: tuple[int, ...] = (3, 16, 16)) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise that is smooth along rows, columns or diagonals, under a random light, uint8 [N, C, H, W]; int [N]."""
    light = 30 * torch.randn(count, 2, 1, 1, 1, generator=generator(0, "light"))
    noise = torch.randn(count, *(side + 8 * (i > 0) for i, side in enumerate(shape)), generator=generator(0, "noise"))
    truth, height, width = torch.arange(count) % 3, *shape[1:]
    moves = [(0, 1), (1, 0), (1, 1)]
    smooth = [sum(noise[:, :, i * a : i * a + height, i * b : i * b + width] for i in range(8)) for a, b in moves]
    chosen = torch.stack(smooth)[truth, torch.arange(count)]
    ramp = light[:, 0] + light[:, 1] * torch.linspace(-1, 1, width)
    return (128 + ramp + 5 * chosen).clamp(0, 255).to(torch.uint8), truth


def fitted(images: torch.Tensor, seed: int = 0) -> PatchNetwork:
    channels = images.shape[1]
    return fit_patches(Rows(images), torch.full((channels,), 0.5), torch.full((channels,), 0.25), seed)


def normalized(images: torch.Tensor) -> torch.Tensor:
    return (images.float() / 255 - 0.5) / 0.25


def test_features_equal_a_slow_reference():
    images, _ = textures(30)
    network = fitted(images)
    whiten = network.whiten.weight.flatten(1).double().numpy()
    words, project = (layer.weight[:, :, 0, 0].double().numpy() for layer in (network.words, network.project))
    x = normalized(images[:2]).double().numpy()
    for image, found in zip(x, network.features(normalized(images[:2])), strict=True):
        places = np.zeros((9, 9, 6))
        for i in range(9):
            for j in range(9):
                z = whiten @ image[:, i : i + 8, j : j + 8].ravel() + network.whiten.bias.double().numpy()
                z /= np.linalg.norm(z)
                code = np.maximum(words @ z - patches.THRESHOLD, 0)
                q = project @ code + network.project.bias.double().numpy()
                places[i, j] = q / np.linalg.norm(q)
        cells = [(0, 3), (3, 6), (6, 9)]
        wanted = [places[a:b, c:d].mean((0, 1)) for a, b in cells for c, d in cells]
        np.testing.assert_allclose(found.numpy(), np.concatenate(wanted), atol=2e-5)


def test_whitened_patches_have_no_mean_and_equal_variances():
    images, _ = textures(60)
    x = normalized(images)
    white = fitted(images).whiten(x).movedim(1, -1).flatten(0, 2)
    assert white.mean(0).abs().max() < 0.1  # of a standard deviation of 1; the mean is that of 3,000 patches
    values = torch.linalg.eigvalsh(white.T.cov())
    assert values[0] < 1e-4, "the mean brightness of a patch is removed"
    brighter = fitted(images).features(x + 0.7)
    torch.testing.assert_close(brighter, fitted(images).features(x), atol=1e-4, rtol=0)


def test_projection_solves_the_generalized_eigenvalue_problem():
    images, _ = textures(60)
    network = fitted(images)
    codes = network.codes(normalized(images)).movedim(1, -1).flatten(1, 2).double()
    total = codes.flatten(0, 1).T.cov(correction=0).numpy()
    between = codes.mean(1).T.cov(correction=0).numpy()
    total += patches.RIDGE * np.trace(total) / len(total) * np.eye(len(total))
    values, vectors = eigh(between, total)
    found = network.project.weight[:, :, 0, 0].double().numpy()
    np.testing.assert_allclose(np.diag(found @ between @ found.T), values[::-1][:6], rtol=1e-3)
    np.testing.assert_allclose(found @ total @ found.T, np.eye(6), atol=1e-3)
    for wanted, row in zip(vectors.T[::-1], found, strict=False):
        assert abs(wanted @ total @ row) == pytest.approx(1, abs=1e-2)


def test_fit_depends_on_images_and_seed_only():
    images, _ = textures(40)
    first = fitted(images).state_dict()
    torch.manual_seed(5)
    assert all(torch.equal(value, first[name]) for name, value in fitted(images).state_dict().items())
    other = fitted(images, seed=1).state_dict()
    assert not torch.equal(other["words.weight"], first["words.weight"])


def test_features_separate_textures_that_pixels_do_not():
    images, truth = textures(240)
    network = fitted(images)
    found = []
    for vectors in (network.features(normalized(images)), normalized(images).flatten(1)):
        vectors = F.normalize(vectors - vectors.mean(0))
        similar = vectors @ vectors.T
        similar.fill_diagonal_(-2)
        found.append(float((truth[similar.argmax(1)] == truth).double().mean()))
    assert found[0] > max(0.7, found[1] + 0.1), found
    shuffled = truth[torch.randperm(240, generator=generator(0, "control"))]
    assert float((shuffled[similar.argmax(1)] == shuffled).double().mean()) < 0.5, "a negative control"


@pytest.mark.parametrize(
    ("shape", "patch", "reduce"),
    [((3, 32, 32), 8, 1), ((1, 8, 8), 4, 1), ((3, 96, 96), 8, 3), ((4, 64, 40), 8, 1), ((1, 4, 4), 2, 1)],
)
def test_images_of_any_shape_have_features(shape, patch, reduce):
    found = settings_for(shape)
    assert (found["patch"], found["reduce"]) == (patch, reduce)
    images = torch.randint(256, (12, *shape), dtype=torch.uint8, generator=generator(0, "shape"))
    features = fitted(images).features(normalized(images))
    assert features.shape == (12, 6 * 9)
    assert features.isfinite().all()


def test_images_of_one_color_have_finite_features():
    images = torch.full((12, 3, 16, 16), 9, dtype=torch.uint8)
    assert fitted(images).features(normalized(images)).isfinite().all()


def test_images_too_small_for_patches_are_refused():
    with pytest.raises(UserError, match="2 x 9 pixels") as caught:
        settings_for((3, 2, 9))
    assert caught.value.option == "encoder"


@pytest.mark.slow
def test_run_on_patches_is_learned_stored_and_exported(tmp_path):
    images, truth = textures(240)
    shift = torch.randint(1, 3, (240,), generator=generator(0, "labels"))
    excluded = F.one_hot((truth + shift) % 3, 3).to(torch.uint8)
    test = Split(images[:100], truth[:100])
    dataset = Dataset("stripes", Split(images, excluded=excluded), test, ("a", "b", "c"), *moments(images))
    config = Config.of(
        recipe="self-training", encoder="patches", labels="given", epochs=15, self_training=3, batch=32, lr=0.01
    )
    result = run(config, tmp_path / "run", device="cpu", dataset=dataset)
    assert result["accuracy_last"] > 0.9
    predictor = load(tmp_path / "run", "last")
    found = predictor(test.inputs).argmax(1)
    assert float((found == truth[:100]).double().mean()) == pytest.approx(result["accuracy_last"])
    stored = FrozenEncoder.read(tmp_path / "run" / "encoder.safetensors")
    assert stored.backbone.settings == settings_for((3, 16, 16))
    session = pytest.importorskip("onnxruntime").InferenceSession
    path = export(predictor, tmp_path / "export")["onnx"]
    inputs = example_inputs(predictor, 7)
    (graph,) = session(path.read_bytes()).run(None, {"inputs": inputs.numpy()})
    np.testing.assert_allclose(graph, predictor(inputs).numpy(), atol=1e-4)
