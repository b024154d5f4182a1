import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from complementary import files
from complementary.config import Config
from complementary.errors import UserError
from complementary.reports.tables import Spread
from complementary.sweeps.grid import read_grid
from complementary.sweeps.results import (
    OPTIONS,
    Damaged,
    NotAResult,
    Query,
    StoredResults,
    Summary,
    caption,
    find,
    parse_where,
    pivot,
    read_config,
    read_result,
    read_results,
    render,
    summarize,
)
from complementary.training.run import run
from tests.helpers import write_result

STORED = Path(__file__).parents[2] / "results"
FMNIST = "file:results/encoders/fmnist-rho1-simsiam"


@pytest.fixture
def put(tmp_path):
    """Write a result to a file -> its path."""
    return lambda name, accuracy=0.5, **options: write_result(tmp_path / "results" / name, accuracy, **options)


def accuracies(paths, **how):
    return [row["accuracy_last"] for row in read_results(paths, **how).rows]


# --- finding and reading ------------------------------------------------------------------------------------------


def test_rows_are_flat_and_hold_every_option_and_metric(tmp_path, quick):
    result = run(quick, tmp_path / "x")
    (row,) = read_results([tmp_path]).rows
    assert (row["data"], row["mix"], row["clusters"]) == ("digits", "icm", 20)
    assert row["accuracy_last"] == result["accuracy_last"]
    assert row["examples"] == result["data"]["examples"]
    assert json.loads(row["per_class_accuracy_last"]) == result["per_class_accuracy_last"]
    assert row["config_hash"] == result["config_hash"]
    assert set(OPTIONS) <= set(row)


def test_rows_keep_the_option_where_a_fact_has_its_name(tmp_path, quick):
    run(quick.with_(transition="estimate", loss="fwd", estimate_epochs=1), tmp_path / "x")
    (row,) = read_results([tmp_path]).rows
    assert row["transition"] == "estimate"  # result.json has the estimated matrix under that name
    assert len(json.loads(row["transition_used"])) == 10


def test_rows_keep_the_encoder_option_beside_the_encoder_that_was_used(put, tmp_path):
    runs = [("auto", "pixels"), ("auto", "run:runs/a"), ("pixels", "pixels"), ("run:./runs/a", "run:runs/a")]
    for seed, (option, used) in enumerate(runs):
        path = put(f"{seed}.json", seed / 10, encoder=option, seed=seed)
        alter(path, data={"examples": 9, "encoder": used})
    results = read_results([tmp_path / "results"])
    assert [(row["encoder"], row["encoder_used"]) for row in results.rows] == runs
    assert [row["seed"] for row in results.select(parse_where(["encoder=auto"]))] == [0, 1]
    assert [row["seed"] for row in results.select(parse_where(["encoder=run:./runs/a"]))] == [3]
    assert [row["seed"] for row in results.select(parse_where(["encoder-used=pixels"]))] == [0, 2]


def test_runs_with_different_encoders_found_by_auto_are_not_averaged(put, tmp_path):
    for seed, used in enumerate(["pixels", "run:runs/a", "run:runs/a"]):
        alter(put(f"{seed}.json", seed / 10, encoder="auto", seed=seed), data={"encoder": used})
    put("none.json", 0.9, encoder="auto", mix="none")
    results = read_results([tmp_path / "results"])
    with pytest.raises(UserError, match="encoder_used = pixels, run:runs/a"):
        summarize(results, Query({"mix": ["icm"]}, ("encoder",)))
    assert summarize(results, Query({"mix": ["icm"]})).query.rows == ("encoder_used",)
    summary = summarize(results, Query({}, ("mix", "encoder_used")))
    assert {key: spreads["accuracy_last"].count for key, spreads in summary.groups.items()} == {
        ("none", None): 1,
        ("icm", "pixels"): 1,
        ("icm", "run:runs/a"): 2,
    }


def test_result_with_an_altered_number_is_damaged(put):
    path = put("a.json", 0.5)
    path.write_text(json.dumps(files.seal(json.loads(path.read_text()))))
    assert read_result(path)["accuracy_last"] == 0.5
    assert "sha256" not in read_results([path]).rows[0]
    path.write_text(path.read_text().replace("0.5", "0.6", 1))
    with pytest.raises(Damaged, match="SHA-256"):
        read_result(path)
    assert read_results([path], skip_damaged=True).rows == []


def test_find_lists_files_folders_and_patterns_once_and_skips_hidden_folders(put, tmp_path):
    a, b, c = put("a.json"), put("deep/b/result.json"), put("deep/c.json")
    put(".hidden/d.json")
    (tmp_path / "results" / "note.txt").write_text("")
    root = tmp_path / "results"
    assert find([root]) == [a, c, b]
    assert find([root / "deep" / "*", a, root]) == [b, c, a]
    with pytest.raises(UserError, match="zzz"):
        find([root / "zzz*"])


def test_repeated_configurations_count_once(put, tmp_path):
    put("a.json", 0.1), put("b.json", 0.9), put("c.json", 0.3, seed=1)
    results = read_results([tmp_path / "results"])
    assert [row["accuracy_last"] for row in results.rows] == [0.1, 0.3]
    assert results.repeated == 1


def test_select_matches_all_options(put, tmp_path):
    put("a.json", flip=True), put("b.json", flip=False), put("c.json", long_tail=10.0)
    results = read_results([tmp_path / "results"])
    assert [row["flip"] for row in results.select({"flip": [True, None]})] == [True, None]
    assert [row["long_tail"] for row in results.select({"long_tail": [10], "flip": [None]})] == [10.0]


def alter(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:-40]), "not complete JSON"),
        (lambda p: p.write_bytes(b""), "not complete JSON"),
        (lambda p: p.write_bytes(b"\xff\xfe"), "not complete JSON"),
        (lambda p: p.write_text(p.read_text().replace('"alpha": 0.4', '"alpha": 0.5')), "config_hash"),
        (lambda p: p.write_text(p.read_text().replace('"alpha": 0.4', '"alpha": "x"')), "alpha"),
        (lambda p: alter(p, accuracy_last="high"), "accuracy_last is high"),
    ],
)
def test_damaged_files_are_named_and_can_be_skipped(put, tmp_path, harm, reason):
    put("good.json", 0.1, seed=1)
    bad = put("bad.json", 0.2)
    harm(bad)
    with pytest.raises(Damaged, match=reason) as caught:
        read_results([tmp_path / "results"])
    assert str(bad) in str(caught.value)
    assert caught.value.option == "skip_damaged"
    results = read_results([tmp_path / "results"], skip_damaged=True)
    assert [row["accuracy_last"] for row in results.rows] == [0.1]
    assert len(results.skipped) == 1


@pytest.mark.parametrize("content", ['{"loss_last": 1, "config": {"data": "digits"}}', '{"config": {"training": {}}}'])
def test_json_files_of_another_kind_are_ignored_in_a_folder_but_not_by_name(put, tmp_path, content):
    put("a.json", 0.1)
    other = tmp_path / "results" / "encoder.json"
    other.write_text(content)
    assert accuracies([tmp_path / "results"]) == [0.1]
    with pytest.raises(NotAResult, match=r"encoder\.json"):
        read_results([other])


@pytest.mark.parametrize("content", ["{}", "[1, 2]", "null"])
def test_json_of_another_kind_in_place_of_a_result_of_a_sweep_is_damage(put, tmp_path, content, monkeypatch):
    bad = put("sweep/runs/0123456789abcdef/result.json", 0.2, seed=1)
    put("sweep/runs/fedcba9876543210/result.json", 0.1)
    bad.write_text(content)
    assert accuracies([tmp_path]) == [0.1]  # without sweep.json, a run of another kind, such as a pretraining
    (tmp_path / "results/sweep/sweep.json").write_text("[]")
    for place in (tmp_path, bad.parent.parent, bad):
        with pytest.raises(Damaged, match="not the result"):
            read_results([place])
    monkeypatch.chdir(bad.parent)
    with pytest.raises(Damaged):
        read_results(["result.json"])
    assert accuracies([tmp_path], skip_damaged=True) == [0.1]


def test_options_that_a_stored_configuration_lacks_have_their_defaults(put, tmp_path):
    path = put("old.json", 0.7)
    put("same.json", 0.8)
    content = json.loads(path.read_text())
    del content["config"]["variant"]["clean_pass"]
    path.write_text(json.dumps(content | {"config_hash": "of an earlier version"}))
    assert read_result(path)["accuracy_last"] == 0.7
    results = read_results([path.parent])
    assert results.repeated == 1
    assert results.rows[0]["clean_pass"] is False


# --- the stored results -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "runs", "query", "wanted"),
    [
        (
            "features",
            60,
            Query(parse_where(["loss=s-exp", "mix=none"]), value=("accuracy_selected",)),
            "87.88 ± 0.25 (5)",
        ),
        (
            "features-800",
            30,
            Query(parse_where(["loss=s-exp", "mirror=true"]), value=("accuracy_selected",)),
            "89.22 ± 0.23 (5)",
        ),
        ("self-training", 3, Query(), "94.67 ± 0.22 (3)"),
        ("self-training", 3, Query(value=("accuracy_last_mirrored",)), "94.86 ± 0.14 (3)"),
        ("self-training-scratch", 3, Query(), "90.90 ± 0.15 (3)"),
        ("self-training-cifar20-discriminant", 3, Query(), "63.30 ± 0.75 (3)"),
        ("baselines-equal", 1, Query(), "94.25 (1)"),
        ("self-training-mnist", 9, Query(parse_where(["data=mnist"])), "99.57 ± 0.06 (3)"),
        ("self-training-mnist", 9, Query(parse_where([f"encoder={FMNIST}-100.safetensors"])), "88.12 ± 0.59 (3)"),
        (
            "self-training-mnist",
            9,
            Query(parse_where([f"encoder={FMNIST}-no-max-pool-40.safetensors"])),
            "87.93 ± 0.19 (3)",
        ),
        ("self-training-long-tail", 3, Query(), "57.17 ± 6.77 (3)"),
        ("self-training-long-tail-mnist", 6, Query(parse_where(["data=mnist"])), "97.92 ± 0.65 (3)"),
        ("self-training-long-tail-mnist", 6, Query(parse_where(["data=fmnist"])), "67.46 ± 1.21 (3)"),
        (
            "self-training-long-tail-encoder-mnist",
            9,
            Query(parse_where(["neighborhood=nearest", "data=mnist"])),
            "97.86 ± 0.67 (3)",
        ),
        ("self-training-long-tail-encoder-mnist", 9, Query(parse_where(["data=fmnist"])), "76.06 ± 4.79 (3)"),
        ("self-training-scratch-120", 3, Query(), "91.37 ± 0.10 (3)"),
        ("self-training-labels", 9, Query(parse_where(["data=clcifar10-simulated"])), "90.32 ± 0.42 (3)"),
        ("self-training-labels", 9, Query(parse_where(["data=cifar10"])), "93.42 ± 0.33 (3)"),
        ("self-training-labels", 9, Query(parse_where(["data=aclcifar10"])), "91.08 ± 0.28 (3)"),
        ("self-training-cifar100-discriminant", 1, Query(), "28.57 (1)"),
        ("self-training-cifar20-start", 1, Query(), "62.39 (1)"),
        ("self-training-long-tail-encoder", 3, Query(), "59.88 ± 1.23 (3)"),
        (
            "discriminant-labels",
            18,
            Query(parse_where(["data=clcifar10-simulated", "fit=gradient"])),
            "82.44 ± 0.48 (3)",
        ),
        ("self-training-long-tail-mlp", 6, Query(parse_where(["loss=s-nl-w"])), "76.35 ± 2.48 (3)"),
        ("self-training-cifar20", 3, Query(), "52.41 ± 0.79 (3)"),
        ("self-training-cifar100", 2, Query(parse_where(["per_example=5"])), "2.69 (1)"),
        ("features-labels", 60, Query(parse_where(["data=aclcifar10", "loss=fwd"])), "81.67 ± 0.18 (3)"),
    ],
)
def test_stored_results_have_the_documented_means(folder, runs, query, wanted):
    results = read_results([STORED / folder])
    assert (len(results.rows), results.repeated) == (runs, 0)
    ((row,),) = (table.rows for table in pivot(summarize(results, query)))
    assert row[-1] == wanted


def test_stored_results_are_named_after_their_configuration():
    folders = [path.name for path in STORED.glob("self-training*")]
    assert len(folders) >= 7
    for folder in ("features", "features-800", "features-labels", *folders):
        for row in read_results([STORED / folder]).rows:
            assert row["config_hash"][:12] in row["path"]


def test_results_are_read_without_torch():
    code = "import sys, complementary.cli.report, complementary.cli.sweep; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


# --- queries ------------------------------------------------------------------------------------------------------

WHERE = {"long_tail": [10.0]}


@pytest.fixture
def results(put, tmp_path):
    """2 losses x 2 mixers x 2 long tails x 3 seeds with distinct accuracies."""
    grid = [(x, m, t, s) for x in ("dm", "s-nl") for m in ("micm", "none") for t in (10.0, 2.0) for s in range(3)]
    for number, (loss, mix, tail, seed) in enumerate(grid):
        options = {"loss": loss, "mix": mix, "long_tail": tail, "seed": seed, "alpha": 0.1 if tail == 10.0 else 0.4}
        alter(put(f"{number:02}.json", number / 100, **options), accuracy_selected=None, note="text")
    return read_results([tmp_path / "results"])


def test_summarize_averages_over_seeds(results):
    summary = summarize(results, Query(WHERE, ("loss",), ("mix",)))
    values = [0.00, 0.01, 0.02]  # dm, micm, 10, three seeds
    assert summary.groups["dm", "micm"]["accuracy_last"] == Spread(
        pytest.approx(0.01), pytest.approx(statistics.stdev(values)), 3
    )
    assert len(summary.groups) == 4


def test_summarize_leaves_missing_values_blank(results):
    query = Query(WHERE | {"seed": [1]}, ("loss", "mix"), value=("accuracy_last", "accuracy_selected"))
    spreads = summarize(results, query).groups["dm", "micm"]
    assert spreads["accuracy_last"].deviation is None
    assert spreads["accuracy_selected"] is None


def test_summarize_refuses_to_average_over_options_that_are_not_named(results):
    with pytest.raises(UserError, match=r"long_tail = 10, 2; alpha = 0.1, 0.4\.") as caught:
        summarize(results, Query({}, ("loss",), ("mix",)))
    assert caught.value.option == "where"
    with pytest.raises(UserError, match="mix = micm, none"):
        summarize(results, Query(WHERE, ("loss",)))
    assert len(summarize(results, Query({}, ("loss", "long_tail"), ("mix",))).groups) == 8  # alpha goes with long_tail


def test_summarize_without_rows_uses_all_options_that_vary(results):
    assert summarize(results, Query({"loss": ["dm"]})).query.rows == ("long_tail", "mix", "alpha")
    only = summarize(results, Query({"loss": ["dm"], "mix": ["none"]} | WHERE))
    assert only.query.rows == ("loss", "mix")
    assert len(only.groups) == 1


def test_levels_follow_the_configuration_or_the_query(results):
    summary = summarize(results, Query({}, ("long_tail",), ("mix", "loss")))
    assert summary.levels(("long_tail",)) == [(2.0,), (10.0,)]
    assert summary.levels(("mix", "loss")) == [("none", "s-nl"), ("none", "dm"), ("micm", "s-nl"), ("micm", "dm")]
    asked = summarize(results, Query({"mix": ["micm", "none"]}, ("long_tail", "loss"), ("mix",)))
    assert asked.levels(("mix",)) == [("micm",), ("none",)]


def test_summarize_reports_what_it_cannot_answer(results):
    with pytest.raises(UserError, match="24 results loss is dm, s-nl"):
        summarize(results, Query({"loss": ["fwd"]}))
    with pytest.raises(UserError, match=r"'luck' .*accuracy_last"):
        summarize(results, Query(WHERE, ("loss", "mix"), value=("luck",)))
    with pytest.raises(UserError, match="note is not a number"):
        summarize(results, Query(WHERE, ("loss", "mix"), value=("note",)))


def test_parse_where_uses_the_type_of_the_option():
    found = parse_where(["mix=none,icm", "long-tail=100", "flip=none,true", "clusters=50", "padding=none"])
    assert found == {
        "mix": ["none", "icm"],
        "long_tail": [100.0],
        "flip": [None, True],
        "clusters": [50],
        "padding": [None],
    }


def test_parse_where_takes_values_with_commas_in_quotes():
    found = parse_where(['encoder=pixels, "file:a,b.pt"', 'data="say ""a,b"".npz"', 'assignments="none"', "labels=a=b"])
    assert found == {
        "encoder": ["pixels", "file:a,b.pt"],
        "data": ['say "a,b".npz'],
        "assignments": [None],
        "labels": ["a=b"],
    }


def test_caption_shows_conditions_as_parse_where_reads_them(put, tmp_path):
    put("a.json", 0.1, encoder="file:a,b.pt")
    results, where = read_results([tmp_path / "results"]), ['encoder="file:a,b.pt",pixels']
    assert caption(Query(parse_where(where))).endswith('; encoder = "file:a,b.pt", pixels')
    with pytest.raises(UserError, match=r'encoder is "file:a,b\.pt"'):
        summarize(results, Query({"encoder": ["pixels"]}))
    assert pivot(summarize(results, Query(rows=("encoder",))))[0].rows == [["file:a,b.pt", "10.00 (1)"]]


@pytest.mark.parametrize(
    ("term", "message"),
    [
        ("loss", "'loss'"),
        ("loss=", "OPTION=VALUE"),
        ("lots=1", "'lots'"),
        ("alpha=much", "'much' .* alpha"),
        ("mix=icm,", "A value in 'mix=icm,' is empty"),
        ("mix=,icm", "is empty"),
        ('mix=""', "is empty"),
        ('encoder="file:a,b', "The quotes in 'encoder=\"file:a,b' do not match; .* single quotes"),
        ('encoder="file:a"b', "quotes .* do not match"),
    ],
)
def test_parse_where_names_the_bad_term(term, message):
    with pytest.raises(UserError, match=message):
        parse_where([term])


# --- tables -------------------------------------------------------------------------------------------------------


def test_render_has_a_caption_and_a_table_for_each_value_of_by(results):
    text = render(summarize(results, Query({"mix": ["none"]}, ("loss",), (), ("long_tail",))), "text")
    assert text.startswith(
        "accuracy_last: mean ± standard deviation (number of seeds), in percent; mix = none\n\nlong_tail = 2\n"
    )
    assert "\n\nlong_tail = 10\nloss     accuracy_last\n----------------------\ns-nl  19.00 ± 1.00 (3)\n" in text


def test_render_csv_has_a_line_per_group_in_full_precision(results):
    lines = render(summarize(results, Query({}, ("loss",), ("mix", "long_tail"))), "csv").splitlines()
    assert lines[0] == "loss,mix,long_tail,value,mean,std,n,oracle"
    *keys, name, mean, deviation, count, oracle = lines[1].split(",")
    assert (keys, name, count, oracle) == (["s-nl", "none", "2"], "accuracy_last", "3", "false")
    assert float(mean) == statistics.fmean([0.21, 0.22, 0.23])
    assert float(deviation) == pytest.approx(0.01)


def test_pivot_leaves_missing_cells_blank_and_drops_empty_rows():
    found = {"accuracy_last": Spread(0.5, None, 1)}
    groups = dict.fromkeys([("none", "dm", 0.4), ("icm", "dm", 0.1), ("icm", "s-nl", 0.1)], found)
    plain, mixed = pivot(Summary(Query({}, ("loss",), ("alpha",), ("mix",)), groups))
    assert plain.header == ["loss", "0.1", "0.4"]
    assert plain.rows == [["dm", "", "50.00 (1)"]]
    assert mixed.rows == [["s-nl", "50.00 (1)", ""], ["dm", "50.00 (1)", ""]]


def test_tables_mark_what_used_true_labels():
    rows = [
        {**Config().flat(), "mix": mix, "accuracy_last": 0.5, "accuracy_best_on_test": 0.6}
        for mix in ("icm", "intra-class")
    ]
    rows[1]["uses_oracle"] = True
    query = Query({}, ("mix",), value=("accuracy_last", "accuracy_best_on_test"))
    summary = summarize(StoredResults(rows), query)
    (table,) = pivot(summary)
    assert table.header == ["mix", "accuracy_last", "accuracy_best_on_test (oracle)"]
    assert table.rows == [
        ["icm", "50.00 (1)", "60.00 (1)"],
        ["intra-class", *["50.00 (1) (oracle)", "60.00 (1) (oracle)"]],
    ]
    marks = [line.split(",")[-1] for line in render(summary, "csv").splitlines()]
    assert marks == ["oracle", "false", "true", "true", "true"]


def test_pivot_shows_several_metrics_side_by_side_and_only_fractions_in_percent():
    query = Query({}, ("loss",), ("mix",), value=("accuracy_last", "train_seconds"))
    spreads = {"accuracy_last": Spread(0.19, 0.01, 3), "train_seconds": Spread(12.0, 0.5, 3)}
    (table,) = pivot(Summary(query, {("dm", "icm"): spreads}))
    assert table.header == ["loss", "icm, accuracy_last", "icm, train_seconds"]
    assert table.rows == [["dm", "19.00 ± 1.00 (3)", "12 ± 0.5 (3)"]]
    assert "percent" not in caption(query)


TAILS = sorted(path.stem for path in (STORED / "grids").glob("*long-tail*.toml") if (STORED / path.stem).is_dir())


@pytest.mark.parametrize("name", TAILS)
def test_stored_long_tails_are_cells_of_their_grids(name):
    """A change of what a recipe sets must not change a grid whose results are documented."""
    cells = {cell.config.hash() for cell in read_grid(STORED / "grids" / f"{name}.toml")}
    stored = [read_config(path) for path in (STORED / name).glob("*.json")]
    assert stored
    for config in stored:
        assert cells & {before.hash() for before in config.before_adaptation()}, config.seed
