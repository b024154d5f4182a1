import json
from itertools import permutations

import pytest
import torch

from benchmarks.naming import CASES, PURITIES, draw_groups, main, measure, name_groups


def test_groups_have_the_purity_that_was_asked_for():
    truth, group = draw_groups(classes=10, size=2000, purity=0.6, seed=0)
    assert group.bincount().tolist() == [2000] * 10
    assert (truth == group).double().mean() == pytest.approx(0.6 + 0.4 / 10, abs=0.01), "some are right by chance"


def test_name_groups_is_the_best_of_all_assignments():
    counts = torch.tensor([[3.0, 0, 4, 2], [2, 1, 3, 0], [0, 1, 2, 3], [1, 4, 0, 5]])
    best = min(permutations(range(4)), key=lambda names: sum(counts[g, k] for g, k in enumerate(names)))
    assert name_groups(counts, purity=0.9).tolist() == list(best), "the fewest labels that exclude the name"


def test_pure_groups_are_named_and_random_ones_are_not():
    pure, mixed = (measure(20, 1, purity, examples=20_000, draws=3) for purity in (1.0, 0.0))
    assert pure["named"] == 1
    assert pure["accuracy"] == 1
    assert mixed["accuracy"] == pytest.approx(1 / 20, abs=0.02), "negative control: chance"


def test_main_stores_every_case(tmp_path, capsys):
    main(["--examples", "2000", "--draws", "1", "--out", str(tmp_path / "naming.json")])
    assert len(json.loads((tmp_path / "naming.json").read_text())) == len(CASES) * len(PURITIES)
    assert "cifar100, 5 labels: purity 1.0" in capsys.readouterr().out
