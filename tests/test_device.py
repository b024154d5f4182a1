import json
import platform

import numpy as np
import pytest
import torch

from complementary import __version__
from complementary.device import choose_device, device_name, versions
from complementary.errors import UserError


@pytest.mark.parametrize(("there", "chosen"), [(True, "cuda"), (False, "cpu")])
def test_auto_takes_a_gpu_if_there_is_one(monkeypatch, there, chosen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert choose_device("auto") == torch.device(chosen)


def test_cpu_is_cpu_even_beside_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["abacus", "", "cuda:99", "cpu:x", "Auto"])
def test_a_device_that_is_not_there_is_one_sentence(name):
    with pytest.raises(UserError) as caught:
        choose_device(name)
    assert str(caught.value) == f"The device {name!r} cannot be used on this machine; use auto or cpu."


def test_names(monkeypatch):
    assert device_name(torch.device("cpu")) == f"cpu ({torch.get_num_threads()} threads)"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA H200 number {device.index}")
    assert device_name(torch.device("cuda", 1)) == "NVIDIA H200 number 1"


def test_versions_are_those_of_this_process():
    assert versions() == {
        "complementary": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }
    assert json.loads(json.dumps(versions())) == versions()
