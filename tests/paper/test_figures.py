import json

import pytest

from complementary.config import configure
from complementary.errors import UserError
from complementary.paper import gradients
from complementary.paper.figures import draw
from complementary.paper.results import Results, read
from complementary.paper.studies import STUDIES
from complementary.report import png


def labels(axis):
    return [text.get_text() for text in axis.get_legend().get_texts()]


def heights(axis):
    return sorted(round(patch.get_height(), 6) for patch in axis.patches)


def test_bars_are_our_means_and_marks_the_published_ones(fake, store):
    for entry in STUDIES["intra"].entries:
        for seed in (0, 1):
            fake(entry, 0.4 + seed / 10, seed=seed)
    figure = draw(STUDIES["intra"], read([store]), "ours")
    (axis,) = figure.axes
    assert heights(axis) == [45, 45]
    assert {line.get_ydata()[0] for line in axis.lines if line.get_marker() == "D"} == {37.17, 48.59}
    assert labels(axis) == ["extra-class", "intra-class"]
    assert png(figure).startswith(b"\x89PNG")


def test_many_settings_make_a_row_per_dataset(fake, store):
    for entry in STUDIES["main"].entries:
        if entry.setting.data in ("cifar10", "mnist") and entry.method == "none":
            fake(entry, 0.4)
    figure = draw(STUDIES["main"], read([store]), "ours")
    assert len(figure.axes) == 2
    assert [len(axis.patches) for axis in figure.axes] == [8, 8]


def test_sweeps_are_lines_and_noise_is_scattered(fake, store):
    for number, entry in enumerate(STUDIES["clusters"].entries):
        fake(entry, number / 100)
    (axis,) = draw(STUDIES["clusters"], read([store]), "ours").axes
    assert list(axis.lines[0].get_xdata()) == [30, 40, 50, 60, 70, 80, 90]
    assert len(labels(axis)) == 5
    for number, entry in enumerate(STUDIES["noise-accuracy"].entries):
        fake(entry, 0.5, noise_ratio=number / 100)
    (axis,) = draw(STUDIES["noise-accuracy"], read([store]), "ours").axes
    assert [line.get_xdata()[0] for line in axis.lines] == [0, 1, 2, 3, 4, 5]


def test_p_values_are_drawn_where_there_are_enough_runs(fake, store):
    with pytest.raises(UserError, match=r"^Nothing of the study p-values was run under the protocol ours, so there is"):
        draw(STUDIES["p-values"], Results(), "ours")
    for entry in STUDIES["p-values"].entries[:4]:
        for seed in (0, 1):
            fake(entry, 0.4 + seed / 10 + 0.2 * (entry.method == "icm"), seed=seed)
    (axis,) = draw(STUDIES["p-values"], read([store]), "ours").axes
    assert len(axis.patches) == 2
    assert axis.get_yscale() == "log"


def test_nothing_to_draw_is_one_sentence():
    for name in ("main", "clusters", "noise-accuracy", "gradients"):
        with pytest.raises(UserError, match=f"^Nothing of the study {name} was run under the protocol ours"):
            draw(STUDIES[name], Results(), "ours")


def test_gradients_are_measured_once_and_drawn(tmp_path):
    config = configure(data="digits", model="linear", batch=128, epochs=1, encoder="pixels", clusters=10, restarts=1)
    path = gradients.run(config, tmp_path, "ours", draws=0, device="cpu")
    before = path.read_bytes()
    assert gradients.run(config, tmp_path, "ours", draws=0, device="cpu") == path
    assert path.read_bytes() == before
    assert gradients.files([tmp_path]) == [path]
    content = gradients.read(path)
    steps = 1293 // 128  # 1,437 less a tenth
    assert {row["step"] for row in content["gradients"]} == set(range(steps + 1))
    for row in content["gradients"]:
        assert row["oracle_mse"] == pytest.approx(row["oracle_bias_squared"] + row["oracle_variance"], rel=1e-4)
    figure = draw(STUDIES["gradients"], Results(), "ours", [tmp_path])
    assert [axis.get_title("left") for axis in figure.axes] == ["MSE, digits", "bias², digits", "variance, digits"]
    assert labels(figure.axes[0]) == list(gradients.METHODS)
    path.write_text(json.dumps({"gradients": [{}]}))
    with pytest.raises(UserError, match=r"is damaged \('step'\); delete it, and run 'cll paper gradients' again\.$"):
        gradients.read(path)
