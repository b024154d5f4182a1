import pytest

from benchmarks.streaming import stream_speed, written


def test_stream_speed_measures_resident_and_streamed_training(tmp_path):
    row = stream_speed("cpu", images=64, size=16, model="cnn", batch=16, steps=3, folder=tmp_path)
    assert row["gigabytes"] == pytest.approx(64 * 3 * 16 * 16 / 1e9)
    measured = [name for name in row if name.endswith("per_second")]
    assert len(measured) == 4
    assert all(row[name] > 0 for name in measured)
    ratio = row["streamed_images_per_second"] / row["resident_images_per_second"]
    assert row["streamed_to_resident"] == pytest.approx(ratio)
    assert not list(tmp_path.iterdir())


def test_written_images_are_random_in_every_part(tmp_path):
    with written(1500, 4, tmp_path) as images:
        assert images.shape == (1500, 3, 4, 4)
        assert images[1200:].float().std() > 60
