import json

import pytest

from complementary.config import Config
from complementary.errors import UserError
from complementary.paper import gradients
from complementary.paper.figures import NoPicture, draw
from complementary.paper.store import Results, read
from complementary.paper.studies import STUDIES
from complementary.reports.figures import png
from tests.paper.conftest import entry_of


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
    assert [line.get_xdata()[0] for line in axis.lines if line.get_marker() == "o"] == [0, 1, 2, 3, 4, 5]


def title(figure):
    return figure.axes[0].get_title("left")


def test_published_accuracies_are_drawn_over_noise_even_where_nothing_was_run(fake, store):
    fake(entry_of("noise-accuracy", "icm"), 0.5, noise_ratio=0.06)
    fake(entry_of("noise-accuracy", "mixup"), 0.4, noise_ratio=0.15)
    figure = draw(STUDIES["noise-accuracy"], read([store]), "ours")
    marks = [line for line in figure.axes[0].lines if line.get_marker() == "D"]
    assert {(float(mark.get_xdata()[0]), float(mark.get_ydata()[0])) for mark in marks} == {
        (15.81, 31.46),  # the published noise
        (6.0, 36.21),  # ours, as none was published
        (0.0, 37.17),  # oracles are free of noise
        (0.0, 48.59),
        (0.0, 22.41),  # so is no mixing
    }
    assert labels(figure.axes[0]) == ["none", "mixup", "icm", "extra-class", "intra-class"]
    assert "◇ published\ncifar10, ρ = 100, uniform labels, s-nl, resnet18, 300 epochs" in title(figure)


def test_published_marks_are_promised_only_where_there_are_some(fake, store):
    for name in ("augment", "sharing"):
        fake(STUDIES[name].entries[0], 0.5)
        assert "published" not in title(draw(STUDIES[name], read([store]), "ours"))
    fake(STUDIES["intra"].entries[0], 0.5)
    assert "; ◇ published\n" in title(draw(STUDIES["intra"], read([store]), "ours"))


def test_short_runs_are_told_in_the_picture(fake, store):
    first, second, third = STUDIES["losses"].entries[:3]
    fake(first, 0.5, epochs=100), fake(second, 0.5, epochs=100)
    assert "100 epochs where the paper has 300" in title(draw(STUDIES["losses"], read([store]), "ours"))
    fake(third, 0.5)
    figure = draw(STUDIES["losses"], read([store]), "ours")
    assert "100 or 300 epochs where the paper has 300" in title(figure)
    below = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert below == ["cifar10\ns-nl\n100 ep.", "cifar10\nfwd"]


def test_the_axis_of_a_sweep_is_its_whole_range(fake, store):
    fake(entry_of("clusters", "K=50", data="cifar10"), 0.5)
    low, high = draw(STUDIES["clusters"], read([store]), "ours").axes[0].get_xlim()
    assert 20 < low < 30
    assert 90 < high < 100


def test_p_values_are_drawn_where_there_are_enough_runs(fake, store):
    with pytest.raises(UserError, match=r"^Nothing of the study p-values was run under the protocol ours, so there is"):
        draw(STUDIES["p-values"], Results(), "ours")
    for entry in STUDIES["p-values"].entries[:4]:
        fake(entry, 0.4)
    with pytest.raises(
        NoPicture,
        match=r"^No test of the study p-values can be made under the protocol ours yet, so .* each needs 2 seeds or "
        r"more of both methods; 4 settings with 1 seed can be shown, but not tested\.$",
    ):
        draw(STUDIES["p-values"], read([store]), "ours")
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
    config = Config.of(data="digits", model="linear", batch=128, epochs=1, encoder="pixels", clusters=10, restarts=1)
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
