import pytest

from complementary.paper.figures import NoFigure, draw, draw_all, links, write_all
from complementary.paper.store import Results, read
from complementary.paper.studies import STUDIES
from complementary.reports.figures import png
from tests.paper.conftest import entry_of


def labels(axis):
    return [text.get_text() for text in axis.get_legend().get_texts()]


def title(figure):
    return figure.axes[0].get_title("left")


def test_bars_are_our_means_and_marks_the_published_ones(add_run, store):
    for entry in STUDIES["intra"].entries:
        for seed in (0, 1):
            add_run(entry, 0.4 + seed / 10, seed=seed)
    figure = draw(STUDIES["intra"], read([store]), "ours")
    (axis,) = figure.axes
    assert sorted(round(patch.get_height(), 6) for patch in axis.patches) == [45, 45]
    assert {line.get_ydata()[0] for line in axis.lines if line.get_marker() == "D"} == {37.17, 48.59}
    assert labels(axis) == ["extra-class", "intra-class"]
    assert [text.get_text() for text in axis.texts] == ["2", "2"], "the number of seeds in each bar"
    assert "; ◇ published\n" in title(figure)
    assert "n = 2; error bars: standard deviation" in title(figure)
    assert png(figure).startswith(b"\x89PNG")


def test_bars_of_many_settings_have_a_row_per_dataset(add_run, store):
    for entry in STUDIES["main"].entries:
        if entry.setting.data in ("cifar10", "mnist") and entry.method in ("none", "icm"):
            add_run(entry, 0.4)
    figure = draw(STUDIES["main"], read([store]), "ours")
    assert len(figure.axes) == 2
    assert [len(axis.patches) for axis in figure.axes] == [16, 16]


def test_bars_without_published_numbers_do_not_promise_marks(add_run, store):
    for entry in STUDIES["augment"].entries[:4]:
        add_run(entry, 0.5)
    assert "published" not in title(draw(STUDIES["augment"], read([store]), "ours"))


def test_bars_of_short_runs_say_so(add_run, store):
    for entry in STUDIES["losses"].entries[:2]:
        add_run(entry, 0.5, epochs=100)
    with pytest.raises(NoFigure):  # how losses differ is not seen in one of them
        draw(STUDIES["losses"], read([store]), "ours")
    for entry in STUDIES["losses"].entries[2:5]:  # the last one would be a single bar
        add_run(entry, 0.5)
    figure = draw(STUDIES["losses"], read([store]), "ours")
    assert "100 or 300 epochs (the paper: 300)" in title(figure)
    below = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert below == ["cifar10\ns-nl\n100 ep.", "cifar10\nfwd"]


def test_classes_have_a_bar_per_class_and_method(add_run, store):
    for seed, value in ((0, 0.2), (1, 0.4)):
        for method in ("icm", "micm"):
            add_run(entry_of("minority", method, tail=10.0), 0.5, seed=seed, per_class_accuracy_last=[value] * 9 + [0])
    add_run(entry_of("minority", "icm", tail=100.0), 0.5)  # nothing to compare with
    (axis,) = draw(STUDIES["minority"], read([store]), "ours").axes
    assert [round(patch.get_height(), 6) for patch in axis.patches] == [*[30] * 9, 0] * 2
    assert labels(axis) == ["icm (n = 2)", "micm (n = 2)"]
    assert len(axis.containers) == 4  # bars and error bars of both


def test_classes_without_anything_learned_about_the_smallest_ones_are_not_drawn(add_run, store):
    for method in ("icm", "micm"):
        add_run(entry_of("minority", method, tail=100.0), 0.3, tail_accuracy_last=0.0)
    with pytest.raises(NoFigure):
        draw(STUDIES["minority"], read([store]), "ours")
    add_run(entry_of("minority", "micm", tail=100.0), 0.3, tail_accuracy_last=0.01)
    assert draw(STUDIES["minority"], read([store]), "ours").axes


def test_noise_has_no_single_bars(add_noise, store):
    for mix in ("mixup", "icm"):
        add_noise(entry_of("noise", mix, data="cifar10", tail=1.0, group=""), 0.1)
    add_noise(entry_of("noise", "icm", data="cifar10", tail=1.0, group="byol"), 0.1)
    (axis,) = draw(STUDIES["noise"], read([store]), "ours").axes
    assert [text.get_text() for text in axis.get_xticklabels()] == ["cifar10"]
    assert len(axis.patches) == 2


def test_rows_have_a_bar_and_a_mark_per_method(add_run, store):
    study = STUDIES["as-coded"]
    for entry in study.entries[:3]:
        add_run(entry, 0.3, "paper")
    (axis,) = draw(study, read([store]), "paper").axes
    assert not axis.containers[1:], "one seed has no error bar"
    assert [patch.get_width() for patch in axis.patches] == [30, 30, 30]
    assert [text.get_text() for text in axis.get_yticklabels()] == [entry.method for entry in study.entries[:3]]
    assert [line.get_xdata()[0] for line in axis.lines] == [entry.published.mean for entry in study.entries[:3]]
    assert [text.get_text() for text in axis.texts] == ["n = 1"] * 3
    add_run(study.entries[0], 0.32, "paper", seed=1)
    (axis,) = draw(study, read([store]), "paper").axes
    assert len(axis.containers) == 2
    assert axis.texts[0].get_text() == "n = 2"
    ((left, right),) = [x[:, 0] for x in axis.containers[1].lines[2][0].get_segments()]
    assert right - left == pytest.approx(2 * 2**0.5)  # 30 and 32 have the deviation 1.41


def test_lines_show_a_sweep_over_its_whole_range(add_run, store):
    for method in ("K=40", "K=50", "K=60"):
        add_run(entry_of("clusters", method, data="cifar10"), 0.5)
    (axis,) = draw(STUDIES["clusters"], read([store]), "ours").axes
    assert list(axis.lines[0].get_xdata()) == [40, 50, 60]
    low, high = axis.get_xlim()
    assert (20 < low < 30, 90 < high < 100) == (True, True)


def test_scatter_draws_published_accuracies_even_where_nothing_was_run(add_run, store):
    add_run(entry_of("noise-accuracy", "icm"), 0.5, oracle_noise_ratio=0.06)
    add_run(entry_of("noise-accuracy", "mixup"), 0.4, oracle_noise_ratio=0.15)
    figure = draw(STUDIES["noise-accuracy"], read([store]), "ours")
    lines = figure.axes[0].lines
    assert [line.get_xdata()[0] for line in lines if line.get_marker() == "o"] == [15, 6]
    marks = [line for line in lines if line.get_marker() == "D"]
    assert {(float(mark.get_xdata()[0]), float(mark.get_ydata()[0])) for mark in marks} == {
        (15.81, 31.46),  # the published noise ratio
        (6.0, 36.21),  # ours, as none was published
        (0.0, 37.17),  # oracles are free of noise
        (0.0, 48.59),
        (0.0, 22.41),  # so is no mixing
    }
    assert set(labels(figure.axes[0])) == {"none", "mixup (n = 1)", "icm (n = 1)", "extra-class", "intra-class"}
    assert "◇ published\ncifar10, ρ = 100, uniform labels, s-nl, resnet18, 300 epochs" in title(figure)


def test_gradients_have_three_panels_per_dataset(add_gradients, store):
    add_gradients("mnist"), add_gradients("mnist", seed=1)
    figure = draw(STUDIES["gradients"], read([store]), "ours")
    assert [axis.get_title("left").partition(" /")[0] for axis in figure.axes] == ["MSE", "bias²", "variance"]
    assert labels(figure.axes[2]) == ["mixup", "icm"]
    assert list(figure.axes[0].lines[0].get_ydata()) == [0.75]  # relative to |f|²
    heading = figure.get_suptitle()
    assert heading.startswith("Gradient MSE, bias² and variance\nprotocol ours, balanced, s-nl")
    assert heading.endswith("2 seeds; 16 draws")


@pytest.mark.parametrize("name", ["main", "clusters", "noise-accuracy", "gradients", "p-values"])
def test_draw_needs_something_to_compare(add_run, store, name):
    with pytest.raises(NoFigure, match=name):
        draw(STUDIES[name], Results(), "ours")
    if name != "gradients":
        add_run(STUDIES[name].entries[0], 0.5)
        with pytest.raises(NoFigure, match=name):
            draw(STUDIES[name], read([store]), "ours")


def test_write_all_replaces_the_figures_of_an_earlier_page(add_run, store, tmp_path):
    for entry in STUDIES["intra"].entries:
        add_run(entry, 0.5)
    drawn, folder = draw_all(read([store])), tmp_path / "docs" / "paper"
    assert set(drawn) == {("intra", "ours"), ("noise-accuracy", "ours")}
    assert draw_all(read([store])) == drawn  # the same bytes
    folder.mkdir(parents=True)
    for name in ("main-ours.png", "mine.png"):
        (folder / name).write_bytes(b"")
    write_all(drawn, folder)
    assert {path.name for path in folder.iterdir()} == {"intra-ours.png", "noise-accuracy-ours.png", "mine.png"}
    assert links(drawn, folder, tmp_path / "docs" / "page.md")["intra", "ours"] == "paper/intra-ours.png"
