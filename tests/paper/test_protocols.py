from dataclasses import asdict

import pytest
import torch

from complementary.clusters.assign import write_assignment
from complementary.config import Config
from complementary.data.selection import count_examples
from complementary.paper.protocols import alpha_of, config_of, with_assignments
from complementary.paper.studies import PROTOCOLS, STUDIES, Setting

COMMON = {
    "model": "resnet18",
    "max_pool": True,
    "batch": 512,
    "lr": 1e-4,
    "weight_decay": 1e-4,
    "padding": 4,
    "epochs": 300,
    "policy": "none",
    "per_example": 1,
    "share": "new-data",
    "partners_from": "batch",
}
ICM = {"clusters": 50, "encoder": "simsiam", "pretrain_epochs": 800, "restarts": 10, "assignments": None}
OURS = {"holdout": 0.1, "draws": "addressed", "reset_optimizer": False, "flip": None, "head": None, "clean_pass": False}
WRITTEN = {"label_weights": "matched", "lam": "pair", "partner": "distinct", "alone": "skip", "anchor": "mixed"}
PAPER = {"holdout": 0.0, "draws": "paper", "reset_optimizer": True, "flip": True}


def has(config, wanted):
    found = config.flat()
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize("mix", ["none", "mixup", "icm", "micm"])
def test_protocol_ours_follows_the_text(mix):
    alpha = {"none": 0.4, "mixup": 0.1, "icm": 0.1, "micm": 0.4}[mix]  # CIFAR-20: Beta .1, Dirichlet .4
    config = config_of(Setting("cifar20", "fwd", mix, 100.0), "ours")
    has(config, COMMON | OURS | WRITTEN | {"alpha": alpha, "transition": "auto", "labels": "uniform", "long_tail": 100})
    if mix in ("icm", "micm"):
        has(config, ICM)


def test_protocol_paper_follows_the_published_code():
    shared = COMMON | PAPER | {"head": None, "transition": "auto"}
    icm = {"label_weights": "swapped", "lam": "batch", "partner": "any", "alone": "black", "clean_pass": True}
    has(config_of(Setting("cifar10", "s-nl", "icm"), "paper"), shared | ICM | icm | {"alpha": 0.4})
    micm = {"anchor": "own", "lam": "batch", "partner": "any", "alone": "black", "clean_pass": True, "constant": 30.0}
    has(config_of(Setting("cifar10", "dm", "micm"), "paper"), shared | ICM | micm | {"alpha": 0.2})
    mixup = {"alpha": 1.0, "lam": "batch", "partner": "any", "clean_pass": True}
    has(config_of(Setting("cifar10", "s-exp", "mixup"), "paper"), shared | mixup | {"label_weights": "matched"})
    fwd = {"transition": "oracle", "label_weights": "own", "alpha": 1.0}
    has(config_of(Setting("cifar10", "fwd", "mixup"), "paper"), fwd)
    has(config_of(Setting("cifar10", "fwd", "icm"), "paper"), {"transition": "oracle", "label_weights": "swapped"})
    has(config_of(Setting("cifar10", "s-nl", "extra-class"), "paper"), {"alpha": 1.0, "same_class": True})
    has(config_of(Setting("cifar10", "s-nl", "same-excluded"), "paper"), {"alpha": 0.4, "alone": "black"})
    has(config_of(Setting("cifar10"), "paper"), shared | {"clean_pass": False})
    has(config_of(Setting("mnist"), "paper"), shared | {"head": 5000})
    has(config_of(Setting("mnist"), "plain"), shared | {"head": 5000, "padding": 0, "flip": False})


@pytest.mark.parametrize("mix", ["none", "mixup", "icm", "micm"])
def test_protocol_paper_mixes_as_the_flag_as_coded_does(mix):
    """Setting the options of the method again changes nothing."""
    config = config_of(Setting("cifar10", "fwd", mix), "paper")
    assert config.as_coded() == config
    assert config.variant == Config.of(mix=mix, loss="fwd").as_coded().variant


def test_protocol_labels_are_biased_or_given_where_the_setting_says_so():
    for protocol in PROTOCOLS:
        biased = config_of(Setting("cifar10", "fwd", "icm", 50.0, 5.0), protocol)
        has(biased, {"labels": "biased:5", "long_tail": 50.0, "draws": "addressed", "subset": "first"})
        has(config_of(Setting("clcifar10", "s-nl", "icm", 10.0), protocol), {"labels": "given", "alpha": 0.4})
    given = Setting("clcifar20", "fwd", "icm")
    assert config_of(given, "ours").training.transition == "estimate"
    assert config_of(given, "paper").training.transition == "oracle"
    assert alpha_of(given) == 0.1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_protocol_gives_a_configuration_for_every_setting(protocol):
    known = {}
    for study in STUDIES.values():
        for entry in study.entries:
            config = config_of(entry.setting, protocol)
            assert config.seed == 0
            assert count_examples(config) >= config.training.batch
            known.setdefault(config.hash(), asdict(config))
    assert len(known) == {"ours": 868, "paper": 865, "plain": 857}[protocol]  # what several studies need counts once


def test_examples_of_a_setting_are_counted():
    counted = {
        "cifar10": (50_000, 12_406),
        "cifar20": (50_000, 11_514),
        "fmnist": (60_000, 14_886),
        "mnist": (60_000, 12_406),
    }
    for data, (balanced, tail) in counted.items():
        assert count_examples(config_of(Setting(data), "ours")) == balanced
        assert count_examples(config_of(Setting(data, tail=100.0), "paper")) == tail
    assert count_examples(config_of(Setting("mnist"), "paper")) == 50_000
    assert count_examples(config_of(Setting("cifar10", tail=10.0), "paper")) == 20_431


def test_assignments_are_used_where_they_fit(tmp_path):
    for name, count in (("cifar10-rho100-simsiam-k50", 12_406), ("mnist-rho1-simsiam-k50", 50_000)):
        clusters = torch.zeros(count, dtype=torch.long)
        write_assignment(tmp_path / f"{name}.safetensors", clusters, 50, torch.zeros(count, 1), {})
    icm = Setting("cifar10", "s-nl", "icm", 100.0)
    found = with_assignments(config_of(icm, "paper"), tmp_path)
    assert found.cluster.assignments == str(tmp_path / "cifar10-rho100-simsiam-k50.safetensors")
    mnist = Setting("mnist", "s-nl", "micm")
    assert with_assignments(config_of(mnist, "paper"), tmp_path).cluster.assignments is not None
    without = [
        config_of(mnist, "ours"),  # 60,000 images, not 50,000
        config_of(Setting("cifar10", "s-nl", "mixup", 100.0), "paper"),  # no clusters needed
        config_of(icm, "paper", clusters=30),
        config_of(icm, "paper", encoder="byol"),
        config_of(Setting("cifar10", "s-nl", "icm", 10.0), "paper"),
    ]
    assert all(with_assignments(config, tmp_path).cluster.assignments is None for config in without)
    ours = config_of(icm, "ours")  # one subset, the first of each class, for all seeds
    assert with_assignments(ours, tmp_path).cluster.assignments is not None
    assert with_assignments(ours.with_(subset="seed"), tmp_path).cluster.assignments is None
