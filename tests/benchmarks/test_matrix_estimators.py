import json

import pytest
import torch

from benchmarks.matrix_estimators import CASES, compare, main, old_anchors, simulated


def test_old_anchors_average_the_surest_share():
    probabilities = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.1, 0.9]])
    excluded = torch.tensor([[0, 1], [1, 0], [1, 0], [1, 0]])
    assert old_anchors(probabilities, excluded, share=1.0).tolist() == [[0.5, 0.5], [1, 0]]
    assert old_anchors(probabilities, excluded, share=0.01).tolist() == [[0, 1], [1, 0]]


@pytest.mark.slow
def test_compare_sees_noise_only_if_cross_fitted():
    name, dataset, true = next(case for case in simulated(2000, {}) if case[0].startswith("noise .10"))
    found = compare(dataset, true, epochs=8)
    assert name in CASES
    unseen, seen = (found[k]["diagonal"] for k in ("EM, cross-fitted", "EM, the trained examples"))
    assert seen < unseen
    assert unseen == pytest.approx(0.1, abs=0.06), "2,000 examples only"


@pytest.mark.slow
def test_main_stores_every_case(tmp_path):
    main(["--examples", "300", "--epochs", "1", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "simulated.json").read_text())
    assert set(found["cases"]) == set(CASES)
