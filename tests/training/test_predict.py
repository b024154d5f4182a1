import numpy as np
import pytest
import torch

from complementary import data, load
from complementary.config import Config, PretrainConfig
from complementary.encoders.pretrain import pretrain
from complementary.errors import UserError
from complementary.training.predict import read_examples
from complementary.training.run import run
from tests.helpers import RUN_FILES, run_files


def test_load_predicts_as_in_training(tmp_path, quick):
    result = run(quick.with_(epochs=8), tmp_path)
    test = data.load("digits").test
    for weights in ("last", "selected"):
        predicted = load(tmp_path, weights)(test.inputs).argmax(1)
        assert float((predicted == test.truth).float().mean()) == pytest.approx(result[f"accuracy_{weights}"])


def test_predictor_takes_arrays_and_warns_about_another_range_of_pixels(tmp_path, quick, caplog):
    run(quick, tmp_path)
    caplog.clear()
    images, predictor = data.load("digits").test.inputs[:20], load(tmp_path)
    assert torch.equal(predictor(images.numpy()), predictor(images))
    assert not caplog.text
    predictor(images // 16)
    assert "largest pixel value is 15, below the mean of the training images" in caplog.text


def test_load_without_a_selected_epoch_uses_the_last(tmp_path, quick):
    run(quick.with_(holdout=0.0), tmp_path)
    assert load(tmp_path).classes == tuple("0123456789")
    with pytest.raises(UserError, match="There is no checkpoint"):
        load(tmp_path, "selected")


def test_load_never_replaces_missing_weights(tmp_path, quick):
    run(quick, tmp_path)
    (tmp_path / "selected.safetensors").unlink()
    with pytest.raises(UserError, match="There is no checkpoint"):
        load(tmp_path)
    load(tmp_path, "last")
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(UserError, match="is damaged"):
        load(tmp_path)


def test_load_refuses_an_encoder(tmp_path):
    pretrain(PretrainConfig(epochs=1, batch=256, backbone="cnn"), tmp_path, device="cpu")
    with pytest.raises(UserError, match="contains an encoder"):
        load(tmp_path)


def test_load_refuses_a_file(tmp_path):
    (tmp_path / "x.npy").touch()
    with pytest.raises(UserError, match="is a file"):
        load(tmp_path / "x.npy")


def test_load_refuses_an_unfinished_run_and_inputs_of_another_shape(tmp_path, quick):
    with pytest.raises(UserError, match="finished run"):
        load(tmp_path)
    run(quick, tmp_path)
    with pytest.raises(UserError, match=r"\[1, 9, 9\].*\[1, 8, 8\]"):
        load(tmp_path)(torch.zeros(1, 1, 9, 9, dtype=torch.uint8))


FEATURES = Config.of(inputs="features", encoder="random", mix="none", epochs=2, batch=128)


def test_load_of_a_run_on_features_needs_the_run_folder_only(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    result = run(FEATURES, tmp_path / "run", device="cpu")
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "none"))
    (tmp_path / "run").rename(tmp_path / "moved")
    model, dataset = load(tmp_path / "moved", "last"), data.load("digits")
    assert list(dict(model.network.named_parameters())) == ["fc.weight", "fc.bias"]
    assert model.shape == (1, 8, 8)
    found = (model(dataset.test.inputs).argmax(1) == dataset.test.truth).double().mean()
    assert float(found) == result["accuracy_last"]


def test_resume_of_a_run_on_features_is_bitwise_equal(tmp_path):
    def stop(loop):
        if loop.global_step == 13:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(FEATURES, tmp_path / "a", device="cpu", checkpoint_seconds=0, progress=stop)
    run(FEATURES, tmp_path / "a", device="cpu", resume=True)
    run(FEATURES, tmp_path / "b", device="cpu")
    names = (*RUN_FILES, "encoder.safetensors")
    assert run_files(tmp_path / "a", names) == run_files(tmp_path / "b", names)


IMAGES = np.arange(3 * 4 * 4, dtype=np.uint8).reshape(3, 4, 4)
VECTORS = np.arange(12, dtype=np.float32).reshape(3, 4) / 2


@pytest.mark.parametrize("content", [IMAGES, VECTORS, IMAGES[..., None]], ids=["images", "vectors", "one channel"])
@pytest.mark.parametrize("name", ["npy", "images", "X", "inputs", "whatever", "arr_0"])
def test_read_examples_from_npy_and_npz(tmp_path, content, name):
    path = tmp_path / ("x.npy" if name == "npy" else "x.npz")
    np.save(path, content) if name == "npy" else np.savez(path, **{name: content})
    names, found = read_examples(path)
    assert names is None
    wanted = content.reshape(3, 1, 4, 4) if content.dtype == np.uint8 else content
    assert np.array_equal(found.numpy(), wanted)
    assert found.dtype == (torch.uint8 if content.dtype == np.uint8 else torch.float32)


def test_read_examples_from_npz_with_names(tmp_path):
    np.savez(tmp_path / "x.npz", X=VECTORS, y=[0, 1, 0], names=["a", "b", "c"])
    names, found = read_examples(tmp_path / "x.npz")
    assert names == ["a", "b", "c"]
    assert np.array_equal(found.numpy(), VECTORS)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("0,.5,1,1.5\n2,2.5,3,3.5\n4,4.5,5,5.5\n", None),
        ("a,b,c,d\n0,.5,1,1.5\n2,2.5,3,3.5\n4,4.5,5,5.5\n", None),
        ("id,a,b,c,d\nx,0,.5,1,1.5\ny,2,2.5,3,3.5\nz,4,4.5,5,5.5\n", ["x", "y", "z"]),
    ],
    ids=["plain", "header", "names"],
)
def test_read_examples_from_csv(tmp_path, text, names):
    (tmp_path / "x.CSV").write_text(text)
    assert read_examples(tmp_path / "x.CSV")[0] == names
    assert np.array_equal(read_examples(tmp_path / "x.CSV")[1].numpy(), VECTORS)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("o.npy", np.array([{"a": 1}], dtype=object), "cannot be read"),
        ("o.npz", {"a": np.array([{"a": 1}], dtype=object)}, "cannot be read"),
        ("two.npz", {"a": VECTORS, "b": VECTORS}, "contains a, b; expected inputs"),
        ("float.npz", {"images": IMAGES / 255}, r"float64 .*\[3, 4, 4\]; images must be uint8"),
        ("nan.npy", np.where(VECTORS == 2, np.nan, VECTORS), "example 1 contains NaN"),
        ("text.csv", "a,b\n1,2\n3,x\n", "line 3: expected 2 numbers, found '3,x'"),
        ("empty.csv", "", "is empty"),
        ("none.npy", None, "There is no file .*none.npy.$"),
        ("none.npz", None, "does not exist"),
        ("none.csv", None, "cannot be read"),
        ("x.txt", "rows", "is not an image"),
    ],
)
def test_read_examples_refuses_unreadable_files(tmp_path, name, content, said):
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    elif content is not None:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(UserError, match=said) as caught:
        read_examples(path)
    assert name in str(caught.value)
