import json
import os
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch

from complementary import __version__
from complementary.engine.backend import choose_device, device_name, versions
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


def test_threads_that_wait_sleep_soon_unless_the_user_says_otherwise():
    code = "import os, complementary; print(os.environ.get('GOMP_SPINCOUNT'))"
    for given, wanted in (({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")):
        clean = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
        done = subprocess.run([sys.executable, "-c", code], env=clean | given, capture_output=True, text=True)
        assert done.stdout.strip() == wanted


@pytest.mark.parametrize(("count", "wanted"), [(1, "cpu (1 thread)"), (2, "cpu (2 threads)")])
def test_a_cpu_is_named_with_its_threads(monkeypatch, count, wanted):
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    assert device_name(torch.device("cpu")) == wanted
