import statistics

import pytest

from complementary.reports.tables import FORMATS, caption, pivot
from complementary.sweeps.results import Answer, Group, Question, Spread

VALUES = {("s-nl", "none"): 0.19, ("s-nl", "micm"): 0.13, ("dm", "none"): 0.07, ("dm", "micm"): 0.01}


def answer(question, **more):
    """Three seeds each, one percent apart, at two long tails."""
    groups = []
    for (loss, mix), mean in VALUES.items():
        for tail in (2.0, 10.0):
            keys = {"loss": loss, "mix": mix, "long_tail": tail}
            spreads = {"accuracy_last": Spread.of([mean - 0.01, mean, mean + 0.01]), **more}
            groups.append(Group({name: keys[name] for name in question.keys}, spreads))
    return Answer(question, groups)


def test_text():
    where = {"long_tail": [10.0]}
    assert FORMATS["text"](answer(Question(where, ("loss",), ("mix",)))) == (
        "accuracy_last: mean ± standard deviation (number of seeds), in percent; long_tail = 10\n\n"
        "loss              none              micm\n"
        "----------------------------------------\n"
        "s-nl  19.00 ± 1.00 (3)  13.00 ± 1.00 (3)\n"
        "dm     7.00 ± 1.00 (3)   1.00 ± 1.00 (3)\n"
    )


def test_markdown_with_a_table_for_each_value_of_by():
    text = FORMATS["markdown"](answer(Question({}, ("loss", "mix"), (), ("long_tail",))))
    assert (
        "**long_tail = 2**\n\n| loss | mix | accuracy_last |\n|---|---|---:|\n| s-nl | none | 19.00 ± 1.00 (3) |"
        in text
    )
    assert "**long_tail = 10**" in text


def test_latex_escapes_and_has_as_many_cells_in_every_row():
    text = FORMATS["latex"](answer(Question({}, ("long_tail", "loss"), ("mix",))))
    assert r"long\_tail & loss & none & micm \\" in text
    assert r"19.00 $\pm$ 1.00 (3)" in text
    assert r"\begin{tabular}{llrr}" in text
    assert {line.count("&") for line in text.splitlines() if line.endswith(r"\\")} == {3}


def test_csv_is_exact():
    lines = FORMATS["csv"](answer(Question({}, ("loss",), ("mix", "long_tail")))).splitlines()
    assert lines[0] == "loss,mix,long_tail,value,mean,std,n"
    *keys, name, mean, deviation, count = lines[1].split(",")
    values = [0.18, 0.19, 0.20]
    assert (keys, name, count) == (["s-nl", "none", "2"], "accuracy_last", "3")
    assert float(mean) == statistics.fmean(values)
    assert float(deviation) == pytest.approx(statistics.stdev(values), rel=1e-12)


def test_cells_that_were_not_run_stay_blank_and_rows_without_any_are_left_out():
    groups = [
        Group({"loss": loss, "mix": mix, "alpha": alpha}, {"accuracy_last": Spread(0.5, None, 1)})
        for loss, mix, alpha in [("dm", "icm", 0.1), ("dm", "none", 0.4), ("s-nl", "icm", 0.1)]
    ]
    plain, mixed = pivot(Answer(Question({}, ("loss",), ("alpha",), ("mix",)), _reordered(groups)))
    assert plain.header == ["loss", "0.1", "0.4"]
    assert plain.rows == [["dm", "", "50.00 (1)"]]
    assert mixed.rows == [["s-nl", "50.00 (1)", ""], ["dm", "50.00 (1)", ""]]


def _reordered(groups):
    """With keys in the order by, rows, columns."""
    names = ("mix", "loss", "alpha")
    return [Group({name: group.keys[name] for name in names}, group.spreads) for group in groups]


def test_several_values_stand_side_by_side_and_only_fractions_are_percent():
    question = Question({}, ("loss", "long_tail"), ("mix",), value=("accuracy_last", "train_seconds"))
    (table,) = pivot(answer(question, train_seconds=Spread(12.0, 0.5, 3)))
    assert table.header[2:4] == ["none, accuracy_last", "none, train_seconds"]
    assert table.rows[0][2:4] == ["19.00 ± 1.00 (3)", "12 ± 0.5 (3)"]
    assert "percent" not in caption(question)
