import dataclasses
import itertools
import json
import shlex
import statistics

import pytest

from complementary.config import Config
from complementary.errors import UserError
from complementary.sweeps.results import Index, Question, Spread, ask, parse_where


@pytest.fixture
def index(tmp_path, monkeypatch):
    """2 losses x 2 mixers x 2 long tails x 3 seeds; accuracies that tell them apart."""
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    (tmp_path / "r").mkdir()
    grid = [(x, m, t, s) for x in ("dm", "s-nl") for m in ("micm", "none") for t in (10.0, 2.0) for s in range(3)]
    for number, (loss, mix, tail, seed) in enumerate(grid):
        config = Config.of(loss=loss, mix=mix, long_tail=tail, seed=seed, alpha=0.1 if tail == 10.0 else 0.4)
        content = {"accuracy_last": number / 100, "accuracy_selected": None, "note": "text"}
        content |= {"config": dataclasses.asdict(config), "config_hash": config.hash()}
        (tmp_path / "r" / f"{number:02}.json").write_text(json.dumps(content))
    with Index([tmp_path / "r"]) as index:
        yield index


WHERE = {"long_tail": [10.0]}


def test_mean_and_deviation_over_seeds(index):
    answer = ask(index, Question(WHERE, ("loss",), ("mix",)))
    found = {tuple(group.keys.values()): group.spreads["accuracy_last"] for group in answer.groups}
    values = [0.00, 0.01, 0.02]  # dm, micm, 10, three seeds
    assert found["dm", "micm"] == Spread(pytest.approx(0.01), pytest.approx(statistics.stdev(values)), 3)
    assert len(found) == 4


def test_one_value_has_no_deviation_and_a_missing_one_is_blank(index):
    question = Question(WHERE | {"seed": [1]}, ("loss", "mix"), value=("accuracy_last", "accuracy_selected"))
    first = ask(index, question).groups[0]
    assert first.spreads["accuracy_last"].deviation is None
    assert first.spreads["accuracy_selected"] is None


def test_it_does_not_average_over_what_was_not_named(index):
    with pytest.raises(UserError, match=r"average over long_tail = 10, 2; alpha = 0.1, 0.4; choose by --where long_ta"):
        ask(index, Question({}, ("loss",), ("mix",)))
    with pytest.raises(UserError, match="average over mix = micm, none"):
        ask(index, Question(WHERE, ("loss",)))


def refusal(index, question):
    with pytest.raises(UserError) as problem:
        ask(index, question)
    return str(problem.value)


def offered(index, question):
    """The terms that a refusal offers."""
    return shlex.split(refusal(index, question).partition("--where ")[2].partition(" (that keeps")[0])


def test_a_refusal_offers_a_narrower_question_that_has_an_answer(index):
    assert offered(index, Question({}, ("loss",), ("mix",))) == ["long_tail=10"]
    assert offered(index, Question({"long_tail": [2.0, 10.0]}, ("loss",), ("mix",))) == ["long_tail=10"]
    for question in (Question({}, ("loss",)), Question({"loss": ["dm"]}, (), ("seed",))):
        where = parse_where(offered(index, question))
        assert where.items() >= question.where.items()
        assert len(where) == len(question.where) + 2  # one mixer, and one long tail with its alpha
        ask(index, dataclasses.replace(question, where=where))


def test_a_refusal_offers_as_few_rows_as_tell_all_apart(index):
    said = refusal(index, Question({}, ("loss",)))
    assert "or tell all runs apart by --rows loss long_tail mix (or --columns, --by)." in said
    assert ask(index, Question({}, ("loss", "long_tail", "mix"))).groups


@pytest.fixture
def uneven(tmp_path, monkeypatch):
    """Index runs of these options, each with the seeds 0 and 1."""
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    (tmp_path / "u").mkdir()

    def make(*cells):
        for number, (options, seed) in enumerate(itertools.product(cells, (0, 1))):
            config = Config.of(**options, seed=seed)
            content = {"accuracy_last": 0.5, "config": dataclasses.asdict(config), "config_hash": config.hash()}
            (tmp_path / "u" / f"{number:02}.json").write_text(json.dumps(content))
        return Index([tmp_path / "u"])

    return make


def test_the_narrower_question_keeps_many_runs_rather_than_being_the_shortest(uneven):
    """One term (epochs=7) would do, but it keeps 2 runs only; two keep 8."""
    common = [{"loss": loss, "mix": mix, "alpha": 0.3, "lr": 0.1} for loss in ("dm", "s-nl") for mix in ("icm", "none")]
    odd = [{"alpha": 0.1, "lr": 0.1}, {"alpha": 0.3, "lr": 0.2}, {"alpha": 0.1, "lr": 0.2, "epochs": 7}]
    with uneven(*common, *({"loss": "dm", "mix": "icm"} | options for options in odd)) as index:
        question = Question({}, ("loss",), ("mix",))
        assert sorted(offered(index, question)) == ["alpha=0.3", "lr=0.1"]
        assert "(that keeps 8 of 14 runs)" in refusal(index, question)


def test_the_narrower_question_can_be_pasted(uneven):
    """What --where cannot hold is not offered; what a shell would break is quoted, and numbers are exact."""
    with uneven({"data": "a,b.npz"}, {"data": "my set.npz"}) as index:
        assert offered(index, Question({}, ("loss",))) == ["data=my set.npz"]
    with uneven({"alpha": 0.12345678901}, {"alpha": 0.12345678902}) as index:
        assert offered(index, Question({}, ("loss",))) == ["alpha=0.12345678901"]


def test_where_nothing_can_be_offered_the_option_is_named(uneven):
    with uneven({"data": "a,b.npz"}, {"data": "c,d.npz"}) as index:
        assert "choose by --where data=..., or tell all" in refusal(index, Question({}, ("loss",)))


def test_options_that_are_linked_to_a_named_one_need_no_name(index):
    assert len(ask(index, Question({}, ("loss", "long_tail"), ("mix",))).groups) == 8


def test_without_rows_all_that_varies_makes_them(index):
    assert ask(index, Question({"loss": ["dm"]})).question.rows == ("long_tail", "mix", "alpha")
    only = ask(index, Question({"loss": ["dm"], "mix": ["none"]} | WHERE))
    assert only.question.rows == ("loss", "mix")
    assert len(only.groups) == 1


def test_values_stand_in_their_natural_order_or_as_asked(index):
    answer = ask(index, Question({}, ("long_tail",), ("mix", "loss")))
    assert answer.levels(("long_tail",)) == [(2.0,), (10.0,)]
    assert answer.levels(("mix", "loss")) == [("none", "s-nl"), ("none", "dm"), ("micm", "s-nl"), ("micm", "dm")]
    asked = ask(index, Question({"mix": ["micm", "none"]}, ("long_tail", "loss"), ("mix",)))
    assert asked.levels(("mix",)) == [("micm",), ("none",)]


def test_where_is_read_by_the_type_of_the_option():
    found = parse_where(["mix=none,icm", "long-tail=100", "flip=none,true", "clusters=50", "padding=none"])
    assert found == {
        "mix": ["none", "icm"],
        "long_tail": [100.0],
        "flip": [None, True],
        "clusters": [50],
        "padding": [None],
    }


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (["loss"], "'loss' cannot be read; write OPTION=VALUE"),
        (["loss="], "cannot be read"),
        (["lots=1"], "The option 'lots' is not known; choose one of: data,"),
        (["alpha=much"], "--where alpha=much: 'much' is not a value"),
    ],
)
def test_a_bad_where(terms, said):
    with pytest.raises(UserError, match=said):
        parse_where(terms)


def test_what_cannot_be_answered(index):
    with pytest.raises(UserError, match=r"No result is as --where asks; in these 24 loss is dm, s-nl"):
        ask(index, Question({"loss": ["fwd"]}))
    with pytest.raises(UserError, match=r"The value 'luck' is not known; choose one of:.*accuracy_last"):
        ask(index, Question(WHERE, ("loss", "mix"), value=("luck",)))
    with pytest.raises(UserError, match="The value note is not a number"):
        ask(index, Question(WHERE, ("loss", "mix"), value=("note",)))
