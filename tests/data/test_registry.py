import re

import pytest

from complementary.data import REGISTRY, load
from complementary.data.cache import check_name, sha256
from complementary.data.formats import FORMATS


@pytest.mark.parametrize("spec", REGISTRY.values(), ids=REGISTRY)
def test_registry_entries_are_consistent(spec):
    assert check_name(spec.name) == spec.name
    assert len(set(spec.classes)) == len(spec.classes)
    assert len(spec.mean) == len(spec.std) == spec.shape[0]
    assert all(kind in FORMATS for _, kind in spec.places)
    assert spec.base is None or spec.base in REGISTRY
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in spec.sha256.values())


@pytest.mark.parametrize("spec", REGISTRY.values(), ids=REGISTRY)
def test_registry_downloads_are_https_with_checksums_or_packages(spec):
    for source in spec.downloads:
        assert source.format in FORMATS
        if source.kind == "https":
            assert source.address.startswith("https://")
            assert source.address.endswith("/")
            assert source.files
            for checksum in source.files.values():
                # the authors of CLCIFAR publish none
                assert re.fullmatch("md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", checksum) or spec.labels == "human"
        else:
            assert source.kind in ("npm", "debian")
            assert "/" not in source.address


def test_registry_has_every_dataset_of_the_paper():
    names = "digits mnist fmnist kmnist cifar10 cifar20 clcifar10 clcifar20 aclcifar10 aclcifar20 clcifar10-simulated"
    assert set(names.split()) <= set(REGISTRY)


def test_registry_has_the_head_sizes_of_the_paper():
    heads = {name: REGISTRY[name].head for name in ("cifar10", "cifar20", "kmnist", "fmnist", "mnist")}
    assert heads == {"cifar10": 5000, "cifar20": 2500, "kmnist": 6000, "fmnist": 6000, "mnist": 5000}


def test_registry_reads_cifar100_and_cifar20_from_the_same_archive():
    fine, coarse = REGISTRY["cifar100"], REGISTRY["cifar20"]
    assert (len(fine.classes), len(coarse.classes)) == (100, 20)
    assert fine.classes == tuple(sorted(fine.classes))
    assert [place for place, _ in fine.places] == [place for place, _ in coarse.places]
    assert fine.downloads[0].files == coarse.downloads[0].files
    assert {key for key in fine.sha256 if fine.sha256[key] != coarse.sha256[key]} == {"train/truth", "test/truth"}


def test_registry_describes_digits():
    spec, digits = REGISTRY["digits"], load("digits")
    assert (len(digits.train), len(digits.test)) == (spec.train, spec.test)
    assert digits.classes == spec.classes
    assert (digits.mean, digits.std, digits.flip) == (spec.mean, spec.std, spec.flip)
    found = {
        f"{part}/{what}": sha256(getattr(getattr(digits, part), what).numpy())
        for part in ("train", "test")
        for what in ("inputs", "truth")
    }
    assert found == spec.sha256
