"""``cll export``: options and messages; the graphs are tested with `complementary.training.export`."""

import pytest

from complementary.config import PretrainConfig
from complementary.encoders.pretrain import pretrain
from complementary.training.run import run


def test_export_writes_weights_and_a_model_card(cll, tmp_path, quick):
    run(quick, tmp_path / "run")
    status, out, _ = cll("export", tmp_path / "run", "--safetensors", "--out", tmp_path / "out", "--no-calibrate")
    assert status == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.safetensors", "model_card.md"}
    assert str(tmp_path / "out/model.safetensors") in out


@pytest.mark.slow
def test_export_writes_onnx_by_default(cll, tmp_path, quick):
    pytest.importorskip("onnxruntime")
    run(quick, tmp_path / "run")
    status, out, _ = cll("export", tmp_path / "run", "--opset", 20)
    assert status == 0
    assert (tmp_path / "run/export/model.onnx").stat().st_size > 1000
    assert str(tmp_path / "run/export/model.onnx") in out


@pytest.mark.parametrize("opset", [7, 99])
def test_export_with_an_opset_that_is_not_there_is_one_line(cll, tmp_path, quick, opset):
    run(quick, tmp_path / "run")
    status, _, error = cll("export", tmp_path / "run", "--opset", opset)
    assert (status, error.strip().count("\n")) == (2, 0)
    assert str(opset) in error
    assert "(--opset)" in error
    assert not (tmp_path / "run/export").exists()


def test_export_of_something_else_is_one_line(cll, tmp_path, quick):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    pretrain(PretrainConfig(epochs=1, batch=256, backbone="cnn"), tmp_path / "encoder", device="cpu")
    for name in ("empty", "file", "nowhere", "encoder"):
        status, _, error = cll("export", tmp_path / name)
        assert (status, error.strip().count("\n")) == (2, 0)
        assert name in error
    run(quick, tmp_path / "run")
    status, _, error = cll("export", tmp_path / "run", "--out", tmp_path / "file")
    assert (status, "(--out)" in error) == (2, True)
