import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from complementary.errors import UserError
from complementary.paper.protocols import config_of
from complementary.paper.store import Amount, identity, read
from complementary.paper.studies import STUDIES
from tests.paper.conftest import entry_of

ICM = entry_of("main", "icm", data="cifar10", tail=1.0, loss="dm")
MIXUP = entry_of("main", "mixup", data="cifar10", tail=1.0, loss="dm")


def test_runs_are_found_by_what_they_are(fake, store):
    for seed in (2, 0):
        fake(ICM, 0.5 + seed / 10, seed=seed)
    fake(ICM, 0.9, "paper")
    fake(MIXUP, 0.1)
    runs = read([store]).find(ICM.setting, "ours")
    assert runs.values("accuracy_last") == [0.5, 0.7]
    assert (runs.seeds, runs.epochs, runs.others) == ({0, 2}, 300, 0)
    assert read([store]).find(ICM.setting, "paper").values("accuracy_best_on_test") == [0.9]
    assert read([store]).find(replace(ICM.setting, loss="s-nl"), "ours").rows == ()


def test_runs_of_different_length_or_clusters_are_never_averaged(fake, store):
    short = replace(Amount(), pretrain_epochs=400)
    fake(ICM, 0.1, epochs=100, seed=0), fake(ICM, 0.2, epochs=100, seed=1)
    fake(ICM, 0.6, seed=0)
    fake(ICM, 0.7, seed=0, amount=short), fake(ICM, 0.8, seed=1, amount=short)
    longest = read([store]).find(ICM.setting, "ours")
    assert longest.values("accuracy_last") == [0.7, 0.8]
    assert longest.others == 3
    assert read([store], epochs=100).find(ICM.setting, "ours").values("accuracy_last") == [0.1, 0.2]
    assert read([store], epochs=50).find(ICM.setting, "ours").rows == ()


def test_clusters_play_no_part_where_nobody_needs_them():
    plain = config_of(MIXUP.setting, "ours")
    assert identity(plain) == identity(plain.with_(clusters=7, encoder="byol", epochs=3, seed=9))
    assert identity(plain) != identity(plain.with_(alpha=0.9))
    mixed = config_of(ICM.setting, "ours")
    assert identity(mixed) == identity(mixed.with_(assignments="a/b.safetensors", seed=4))
    assert identity(mixed) != identity(mixed.with_(clusters=51))


def test_a_noise_ratio_counts_once_for_each_seed_whoever_found_it(fake, counted, store, tmp_path):
    for seed in (0, 1):
        counted(ICM, 0.06 + seed / 100, seed=seed)
    fake(ICM, 0.9, seed=1, noise_ratio=0.5), fake(ICM, 0.9, seed=2, noise_ratio=0.08)
    fake(ICM, 0.9, seed=2, epochs=100, noise_ratio=0.5)  # noise does not depend on the length
    shutil.copytree(store / "noise", tmp_path / "copy")
    results = read([store, tmp_path / "copy"])
    runs = results.noise(ICM.setting, "ours")
    assert runs.values("noise_ratio") == pytest.approx([0.06, 0.07, 0.08])
    assert (runs.seeds, runs.epochs, runs.others) == ({0, 1, 2}, None, 0)
    assert results.noise(ICM.setting, "paper").rows == results.noise(MIXUP.setting, "ours").rows == ()
    assert len(results.measured) == 2
    assert len(results.rows) == 3  # what was counted without training is no run
    assert results.find(ICM.setting, "ours").seeds == {1, 2}
    assert read([store], epochs=5).noise(ICM.setting, "ours").seeds == {0, 1, 2}


def test_noise_ratios_of_other_clusters_are_never_averaged(fake, counted, store):
    short = replace(Amount(), pretrain_epochs=400)
    counted(ICM, 0.06), counted(ICM, 0.1, amount=short)
    fake(ICM, 0.9, seed=1, amount=short, noise_ratio=0.2)
    runs = read([store]).noise(ICM.setting, "ours")
    assert (runs.values("noise_ratio"), runs.others) == ([0.1, 0.2], 1)


def test_only_the_study_of_noise_reads_them(counted, store):
    entry = entry_of("noise", "icm", data="cifar10", tail=100.0)
    counted(entry, 0.06)
    found = read([store])
    assert [e for e, runs in found.of(STUDIES["noise"], "ours").items() if runs.rows] == [entry]
    assert not any(runs.rows for runs in found.of(STUDIES["noise-accuracy"], "ours").values())


def test_damaged_noise_ratios_are_named_once(fake, counted, store):
    fake(ICM, 0.5)
    half, odd = counted(ICM, 0.06), counted(ICM, 2.0, seed=1)
    half.write_text("{")
    with pytest.raises(UserError, match=f"^{half} is damaged: it is not whole JSON"):
        read([store])
    found = read([store], skip_damaged=True)
    assert (len(found.rows), found.measured) == (1, ())
    assert [sentence.partition(" is damaged")[0] for sentence in found.skipped] == [str(half), str(odd)]


def test_stores_that_are_missing_empty_or_damaged(store, fake):
    assert read().rows == ()  # the usual places, none of which is there
    assert read([store]).rows == ()
    with pytest.raises(UserError, match=r"^There is no store nowhere; name a folder of runs, or leave --store out\.$"):
        read([Path("nowhere")])
    fake(ICM, 0.5)
    (store / "half.json").write_text('{"config":')
    with pytest.raises(UserError, match=r"half\.json is damaged: it is not whole JSON"):
        read([store])
    found = read([store], skip_damaged=True)
    assert len(found.rows) == 1
    assert "half.json is damaged" in found.skipped[0]
