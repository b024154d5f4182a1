"""Exported graphs agree with the run, for any batch size, and run without this package."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from complementary import ComplementaryClassifier, networks, transitions
from complementary.encoders.backbone import build_backbone
from complementary.encoders.frozen import FrozenEncoder
from complementary.errors import UserError
from complementary.training import export as module
from complementary.training.export import Pipeline, example_inputs, export, export_run, is_resized
from complementary.training.finished import open_run
from complementary.training.predict import Predictor, read_images
from complementary.training.run import run

SERVE = Path(__file__).parents[2] / "examples/serve_onnx.py"
NAMES = ("cat", "dog", "ship")


def on_features(mirror=False, temperature=1.7):
    """A linear layer on the features of a small CNN, for 3 x 16 x 16 images."""
    backbone, width = build_backbone("cnn", (3, 16, 16), 0, True)
    mean = torch.tensor([0.4, 0.5, 0.6])
    encoder = FrozenEncoder(backbone, (3, 16, 16), mean, 0.5 * mean, mirror)
    network = networks.build("linear", (width,), 3).eval()
    return Predictor(network, NAMES, (3, 16, 16), torch.zeros(width), torch.full((width,), 0.01), encoder, temperature)


def on_vectors():
    network = networks.build("mlp", (5,), 3).eval()
    return Predictor(network, NAMES, (5,), torch.arange(5.0), torch.full((5,), 2.0))


def of_labels():
    """As `on_features`, mirrored, for a network that predicts labels: the class is the nearest row of a matrix."""
    matrix = transitions.biased(3, 5).float()
    return dataclasses.replace(on_features(mirror=True), decoder=(matrix, matrix))


PREDICTORS = {
    "features": on_features,
    "mirrored": lambda: on_features(mirror=True),
    "vectors": on_vectors,
    "labels": of_labels,
}


@pytest.mark.parametrize("name", PREDICTORS)
def test_pipeline_computes_what_the_predictor_does(name):
    predictor = PREDICTORS[name]()
    inputs = example_inputs(predictor, 7)
    assert torch.allclose(Pipeline(predictor)(inputs), predictor(inputs), atol=1e-6)


def test_temperature_is_part_of_the_prediction():
    predictor = on_features(temperature=1.0)
    inputs = example_inputs(predictor, 5)
    logits = predictor(inputs).log()
    warm = dataclasses.replace(predictor, temperature=3.0)(inputs)
    assert torch.allclose(warm, (logits / 3).softmax(1), atol=1e-6)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """One export of a model on features that predicts labels, in all formats."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    predictor = of_labels()
    written = export(predictor, tmp_path_factory.mktemp("export"), ["onnx", "torch", "safetensors"])
    return predictor, written


@pytest.mark.slow
def test_onnx_agrees_with_the_predictor_for_any_batch_size(exported):
    import onnxruntime

    predictor, written = exported
    session = onnxruntime.InferenceSession(str(written["onnx"]), providers=["CPUExecutionProvider"])
    for count in (1, 2, 9):
        inputs = example_inputs(predictor, count)
        found = session.run(None, {"inputs": inputs.numpy()})[0]
        assert np.abs(found - predictor(inputs).numpy()).max() < 1e-4
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["classes"]) == list(NAMES)
    assert json.loads(facts["shape"]) == [3, 16, 16]


@pytest.mark.slow
def test_torch_program_agrees_with_the_predictor(exported):
    predictor, written = exported
    program = torch.export.load(written["torch"]).module()
    inputs = example_inputs(predictor, 6)
    assert torch.allclose(program(inputs), predictor(inputs), atol=1e-5)


@pytest.mark.slow
def test_safetensors_hold_all_weights_and_the_class_names(exported):
    predictor, written = exported
    with safe_open(written["safetensors"], framework="pt") as file:
        assert json.loads(file.metadata()["classes"]) == list(NAMES)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    other = Pipeline(of_labels())
    other.load_state_dict(tensors)
    inputs = example_inputs(predictor, 3)
    assert torch.allclose(other(inputs), predictor(inputs), atol=1e-6)


@pytest.mark.slow
def test_served_without_the_package(exported, tmp_path):
    """The example needs onnxruntime, NumPy and Pillow only, and predicts as the run does."""
    predictor, written = exported
    assert len(SERVE.read_text().splitlines()) <= 30
    assert "import complementary" not in SERVE.read_text()
    random, paths = np.random.default_rng(0), [str(tmp_path / f"{i}.png") for i in range(3)]
    for path, (height, width) in zip(paths, ((16, 16), (40, 23), (9, 50)), strict=True):
        Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
    command = [
        sys.executable,
        "-S",
        "-c",
        "import sys; sys.path += sys.argv.pop(1).split(':'); exec(open(sys.argv.pop(1)).read())",
    ]
    site = next(path for path in sys.path if path.endswith("site-packages"))
    done = subprocess.run(
        [*command, site, str(SERVE), str(written["onnx"]), *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    wanted = predictor(read_images(tmp_path, predictor.shape)[1]).max(1)  # as the import reads them
    rows = [line.rsplit(",", 2) for line in done.stdout.split()]
    assert [row[0] for row in rows] == paths
    assert [row[1] for row in rows] == [NAMES[k] for k in wanted.indices.tolist()]
    assert [float(row[2]) for row in rows] == pytest.approx(wanted.values.tolist(), abs=1e-4)


@pytest.mark.slow
def test_export_of_a_run_is_calibrated_and_has_a_model_card(tmp_path, quick):
    pytest.importorskip("onnxruntime")
    run(quick.with_(epochs=8), tmp_path / "run")
    written = export_run(tmp_path / "run", tmp_path / "out", ["safetensors"])
    card = written["card"].read_text()
    assert "logits are divided by" in card
    for part in (
        "0, 1, 2, 3",
        "## How good it is",
        "uint8 [batch, 1, height, width]",
        "8 x 8",
        "model.safetensors",
        "s-nl",
        "## Calibration",
        "known: 0.0 %, by the transition matrix",
    ):
        assert part in card
    plain = export_run(tmp_path / "run", tmp_path / "plain", ["safetensors"], calibrate=False)["card"].read_text()
    assert "not calibrated" in plain
    with safe_open(written["safetensors"], framework="pt") as file:
        assert float(json.loads(file.metadata()["temperature"])) != 1.0


def test_export_of_a_run_whose_data_is_gone_is_not_calibrated(tmp_path, quick):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", inputs=rng.normal(size=(300, 4)), not_y=rng.integers(0, 3, 300))
    run(quick.with_(data=str(tmp_path / "x.npz"), mix="none", batch=64), tmp_path / "run")
    (tmp_path / "x.npz").unlink()
    card = export_run(tmp_path / "run", formats=["safetensors"])["card"].read_text()
    assert "not calibrated" in card
    assert (tmp_path / "run/export/model.safetensors").exists()


def test_card_says_that_the_matrix_with_the_rate_was_estimated(tmp_path, quick):
    options = {"labels": "noisy:0.1", "transition": "estimate", "loss": "fwd", "estimate_epochs": 2}
    run(quick.with_(**options, mix="none"), tmp_path / "run")
    card = export_run(tmp_path / "run", formats=["safetensors"])["card"].read_text()
    assert "taken from the transition matrix, which was estimated: " in card


def test_card_says_that_the_rate_of_wrong_answers_was_estimated(tmp_path, quick):
    """Answers of people: the matrix does not say how many are wrong."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 600)
    inputs = rng.normal(size=(600, 4)) + 3 * np.eye(3, 4)[truth]
    np.savez(tmp_path / "x.npz", inputs=inputs, not_y=(truth + rng.integers(1, 3, 600)) % 3)
    run(quick.with_(data=str(tmp_path / "x.npz"), mix="none", batch=64, holdout=0.3), tmp_path / "run")
    card = export_run(tmp_path / "run", formats=["safetensors"])["card"].read_text()
    temperature = open_run(tmp_path / "run").temperature()
    assert f"- Temperature {temperature.text()}, from 180 held-out examples" in card
    assert "How many answers are wrong is estimated from the same answers" in card
    assert f"logits are divided by {temperature.value:.3f}" in card


@pytest.mark.slow
def test_estimator_exports_itself(tmp_path):
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 200)
    inputs = rng.normal(size=(200, 4)) + 4 * np.eye(3, 4)[truth]
    model = ComplementaryClassifier(mix="none", epochs=2).fit(inputs, (truth + 1) % 3)
    written = export(model.predictor_, tmp_path, ["torch"])
    found = torch.export.load(written["torch"]).module()(torch.from_numpy(inputs).float())
    assert found.detach().numpy() == pytest.approx(model.predict_proba(inputs), abs=1e-5)


def test_export_refuses_unknown_formats_and_opsets(tmp_path):
    with pytest.raises(UserError, match="pickle"):
        export(on_vectors(), tmp_path, ["pickle"])
    for opset in (9, 99):
        with pytest.raises(UserError, match=str(opset)) as caught:
            export(on_vectors(), tmp_path / "x", ["onnx"], opset=opset)
        assert caught.value.option == "opset"
    assert not (tmp_path / "x").exists()


def test_export_names_the_missing_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match=r"pip install '\.\[export\]'"):
        export(on_vectors(), tmp_path, ["onnx"])


def test_graph_that_differs_is_not_written(tmp_path, monkeypatch):
    """Negative control of the comparison: a pipeline with another temperature is refused."""
    monkeypatch.setattr(
        module, "Pipeline", lambda predictor, fit: Pipeline(dataclasses.replace(predictor, temperature=1.01), fit)
    )
    with pytest.raises(UserError, match="differs"):
        export(on_vectors(), tmp_path, ["torch"])
    assert not (tmp_path / "model.pt2").exists()


def test_graph_that_resizes_differently_is_not_written(tmp_path, monkeypatch):
    """Negative control of the comparison with a photo of another size."""
    monkeypatch.setattr(module, "Pipeline", lambda predictor, fit: Pipeline(predictor, "stretch"))
    with pytest.raises(UserError, match="differs"):
        export(on_features(), tmp_path, ["torch"])
    assert not (tmp_path / "model.pt2").exists()


@pytest.mark.parametrize(
    ("shape", "resized"), [((3, 8, 8), True), ((1, 8, 8), True), ((4, 8, 8), False), ((3, 8, 9), False)]
)
def test_graph_resizes_square_images_only(shape, resized):
    network = networks.build("mlp", shape, 3).eval()
    mean = torch.full((shape[0],), 0.5)
    assert is_resized(Predictor(network, NAMES, shape, mean, mean)) == (shape in ((3, 8, 8), (1, 8, 8)))
    assert not is_resized(on_vectors())


def test_export_of_an_unfinished_run_is_an_error(tmp_path):
    (tmp_path / "config.toml").touch()
    with pytest.raises(UserError, match="finished run"):
        export_run(tmp_path)
    with pytest.raises(UserError, match="finished run"):
        export_run(tmp_path / "nowhere")
