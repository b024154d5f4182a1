"""Time to accuracy: the first time counts, and a tiny measurement has all stages."""

from pathlib import Path

import pytest

from benchmarks.time_to_accuracy import measure, seconds_to
from complementary.config import PretrainConfig


def test_seconds_to_is_the_first_time_an_accuracy_is_reached():
    rows = [
        {"seconds": 1.0, "accuracy": None},
        {"seconds": 2.0, "accuracy": 0.85},
        {"seconds": 3.0, "accuracy": 0.91},
        {"seconds": 4.0, "accuracy": 0.89},
        {"seconds": 5.0, "accuracy": 0.92},
    ]
    assert seconds_to(rows, (0.8, 0.9, 0.92, 0.95)) == {"80": 2.0, "90": 3.0, "92": 5.0, "95": None}


@pytest.mark.slow
def test_measurement_has_every_stage_in_order(tmp_path):
    pretraining = PretrainConfig(data="digits", epochs=1, batch=256)
    found = measure(pretraining, {"self_training": 2, "epochs": 1, "batch": 256}, tmp_path, "cpu")
    stages = [row["stage"] for row in found["rows"]]
    assert stages == ["first classifier", "self-training", "self-training"]
    seconds = [row["seconds"] for row in found["rows"]]
    assert found["seconds_of_pretraining"] <= seconds[0] <= seconds[1] <= seconds[2] <= found["seconds"]
    assert found["accuracy_last"] == found["rows"][-1]["accuracy"]
    assert len(Path(tmp_path, "epochs.jsonl").read_text().splitlines()) == 4  # with the pretraining
