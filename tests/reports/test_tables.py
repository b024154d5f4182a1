import statistics

import pytest

from complementary.reports import tables
from complementary.reports.tables import Spread, Table

TABLE = Table("long_tail = 2", ["loss", "a|b", "micm"], [["s-nl", "19.00 ± 1.00 (3)", "13"], ["dm", "", "1"]], 1)


def test_spread_is_mean_and_sample_deviation():
    values = [0.18, 0.19, 0.23]
    assert Spread.of(values) == Spread(statistics.fmean(values), statistics.stdev(values), 3)
    assert Spread.of([0.5]) == Spread(0.5, None, 1)


@pytest.mark.parametrize(
    ("spread", "percent", "shown"),
    [
        (Spread(0.1234567, 0.01, 3), True, "12.35 ± 1.00 (3)"),
        (Spread(0.5, None, 1), True, "50.00 (1)"),
        (Spread(1234.567, 0.5, 3), False, "1235 ± 0.5 (3)"),
        (None, True, ""),
    ],
)
def test_show_spread(spread, percent, shown):
    assert tables.show_spread(spread, percent) == shown


def test_text_aligns_keys_left_and_numbers_right():
    assert tables.text("heading", [TABLE]) == (
        "heading\n\n"
        "long_tail = 2\n"
        "loss               a|b  micm\n"
        "----------------------------\n"
        "s-nl  19.00 ± 1.00 (3)    13\n"
        "dm                         1\n"
    )


def test_markdown_has_titles_and_escapes_bars():
    assert tables.markdown("heading", [TABLE]) == (
        "heading\n\n**long_tail = 2**\n\n"
        "| loss | a\\|b | micm |\n|---|---:|---:|\n| s-nl | 19.00 ± 1.00 (3) | 13 |\n| dm |  | 1 |\n"
    )


def test_latex_escapes_and_has_equally_many_cells_in_every_row():
    text = tables.latex("heading", [Table("", ["long_tail", "icm"], [["10 %", "19.00 ± 1.00 (3)"], ["~", "^"]], 1)])
    assert r"long\_tail & icm \\" in text
    assert r"10 \% & 19.00 $\pm$ 1.00 (3) \\" in text
    assert r"\begin{tabular}{lr}" in text
    assert {line.count("&") for line in text.splitlines() if line.endswith(r"\\")} == {1}


def test_csv_keeps_full_precision():
    lines = tables.csv(["loss", "mean"], [["s-nl", 0.1 + 0.2], ["d,m", None]]).splitlines()
    assert lines == ["loss,mean", f"s-nl,{0.1 + 0.2!r}", '"d,m",']


def test_counted():
    assert [tables.counted(n, "seed") for n in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]
