import numpy as np
import pytest
import torch

from complementary import load
from complementary.config import configure
from complementary.errors import UserError
from complementary.predict import read_inputs
from complementary.runner import run


def test_a_loaded_run_predicts_as_it_did_in_training(tmp_path, quick):
    from complementary.data import load as load_data

    result = run(configure(quick, epochs=8), tmp_path)
    test = load_data("digits").test
    for weights in ("last", "selected"):
        predicted = load(tmp_path, weights)(test.inputs).argmax(1)
        assert float((predicted == test.truth).float().mean()) == pytest.approx(result[f"accuracy_{weights}"])


def test_without_a_selected_epoch_the_last_one_counts(tmp_path, quick):
    run(configure(quick, holdout=0.0), tmp_path)
    assert load(tmp_path).classes == tuple("0123456789")
    with pytest.raises(UserError, match="There is no checkpoint"):
        load(tmp_path, "selected")


def test_inputs_of_another_shape_and_folders_without_a_run(tmp_path, quick):
    with pytest.raises(UserError, match="holds no finished run"):
        load(tmp_path)
    run(quick, tmp_path)
    with pytest.raises(UserError, match=r"\[1, 9, 9\] per example, but the run was trained on \[1, 8, 8\]"):
        load(tmp_path)(torch.zeros(1, 1, 9, 9, dtype=torch.uint8))


def test_input_files(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((3, 4)))
    assert read_inputs(tmp_path / "x.npy").shape == (3, 4)
    np.save(tmp_path / "o.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    for name, said in (("o.npy", "not a .npy file of plain numbers"), ("none.npy", "cannot be read")):
        with pytest.raises(UserError, match=said):
            read_inputs(tmp_path / name)
