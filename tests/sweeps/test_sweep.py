import json
import os
import signal
import time

import pytest

from complementary import files
from complementary.clusters import assign, cache
from complementary.config import Config
from complementary.errors import UserError
from complementary.sweeps.grid import Cell
from complementary.sweeps.local import LocalExecutor
from complementary.sweeps.results import read_results
from complementary.sweeps.sweep import Ended, Sweep, SweepFolder, TimeLimit, read_status
from complementary.sweeps.worker import RunCells
from complementary.training import recipes
from complementary.training.run import run
from tests.helpers import run_files


class Here:
    """Runs tasks in this process; raises KeyboardInterrupt after ``until`` tasks."""

    def __init__(self, folder, until=None):
        self.work, self.until, self.done, self.task = RunCells(folder), until, [], None

    @property
    def free(self):
        return self.task is None

    def submit(self, key, cells):
        self.task = key, cells

    def wait(self, seconds):
        if len(self.done) == self.until:
            raise KeyboardInterrupt
        (key, cells), self.task = self.task, None
        self.done.append(key)
        return [Ended(key, self.work(cells, "cpu"))]

    def close(self):
        pass


@pytest.fixture
def folder(tmp_path):
    folder = SweepFolder(tmp_path / "sweep")
    with folder.claim():
        yield folder


def cells(base, **options):
    """One cell per value of the single option."""
    ((name, values),) = options.items()
    return [Cell(base.with_(**{name: value}), f"{name}={value}") for value in values]


def sweep(grid, folder, **how):
    """Run a sweep in this process -> the keys of its tasks, and the outcome."""
    executor = Here(folder)
    return executor.done, Sweep(grid, folder, executor, **how).run()


def test_sweep_runs_every_cell_once_as_cll_train_does(folder, quick, tmp_path):
    grid = cells(quick, seed=[0, 1])
    done, outcome = sweep(grid, folder)
    assert outcome == {cell.key: "" for cell in grid}
    assert done == [cell.key for cell in grid]
    run(grid[1].config, tmp_path / "alone")
    assert run_files(folder.run(grid[1].key)) == run_files(tmp_path / "alone")
    assert "epoch 2/2 loss" in folder.log(grid[0].key).read_text()
    found = read_results([folder.root]).rows
    assert sorted(row["config_hash"][:16] for row in found) == sorted(cell.key for cell in grid)


def test_sweep_with_a_time_limit_starts_only_what_can_end(folder, quick):
    grid = cells(quick, seed=[0, 1, 2])
    seconds = dict(zip([cell.key for cell in grid], (1.0, 9999.0, 1.0), strict=True))
    done, outcome = sweep(grid, folder, limit=TimeLimit(time.monotonic() + 600, seconds))
    assert done == [grid[0].key, grid[2].key]
    assert outcome == dict.fromkeys(done, "")
    assert sweep(grid, folder)[0] == [grid[1].key]  # the same grid continues
    assert sweep(cells(quick, seed=[7]), folder, limit=TimeLimit(time.monotonic() - 1, {}))[1] == {}


def test_time_limit_expects_what_the_latest_tasks_took(quick):
    first, second = ([cell] for cell in cells(quick, seed=[0, 1]))
    limit = TimeLimit(time.monotonic() + 100, {first[0].key: 30.0, second[0].key: 60.0})
    assert limit.admits(second)
    limit.took(first, 60.0)
    assert (limit.admits(first), limit.admits(second)) == (True, False)  # twice as long as expected
    for _ in range(4):
        limit.took(first, 10.0)  # the first task was slow, the others are not
    assert limit.admits(second)


def test_time_limit_admits_more_if_all_of_the_latest_tasks_were_faster(quick):
    first, second = ([cell] for cell in cells(quick, seed=[0, 1]))
    limit = TimeLimit(time.monotonic() + 100, {first[0].key: 30.0, second[0].key: 160.0})
    for seconds in (10.0, 15.0, 10.0):
        limit.took(first, seconds)
        assert not limit.admits(second)
    limit.took(first, 10.0)
    assert limit.admits(second)  # half of 160 seconds, as the slowest of the four
    limit.took(first, 29.0)
    assert not limit.admits(second)


class Stub:
    """Ends tasks without training: every task takes 0.01 seconds and has a result unless its cell is to fail."""

    def __init__(self, folder, failing=()):
        self.folder, self.failing, self.done, self.task = folder, failing, [], None

    @property
    def free(self):
        return self.task is None

    def submit(self, key, cells):
        self.task = key

    def wait(self, seconds):
        if self.task is None:
            return []
        time.sleep(0.01)
        key, self.task = self.task, None
        self.done.append(key)
        self.folder.run(key).mkdir(exist_ok=True)
        if key in self.failing:
            return [Ended(key, {key: "NaN"})]
        self.folder.result(key).write_text("{}")
        return [Ended(key)]


@pytest.mark.parametrize(("kind", "starts"), [("failed", False), ("resumed", False), ("complete", True)])
def test_time_limit_learns_from_complete_runs_only(folder, quick, kind, starts):
    """Four fast runs show that one of 9,999 seconds ends within 600, but only if they trained completely."""
    *short, last = grid = cells(quick, seed=range(5))
    if kind == "resumed":
        for cell in short:
            folder.run(cell.key).mkdir()
    executor = Stub(folder, [cell.key for cell in short] if kind == "failed" else [])
    seconds = dict.fromkeys((cell.key for cell in short), 100.0) | {last.key: 9999.0}
    Sweep(grid, folder, executor, limit=TimeLimit(time.monotonic() + 600, seconds)).run()
    assert (last.key in executor.done) == starts


def test_sweep_skips_finished_cells_and_adds_new_ones(folder, quick, caplog):
    sweep(cells(quick, seed=[0]), folder)
    grid = cells(quick, seed=[0, 1])
    caplog.clear()
    caplog.set_level("INFO")
    assert sweep(grid, folder)[0] == [grid[1].key]
    assert [r.message for r in caplog.records if r.name.endswith("sweeps.sweep")] == ["[2/2] seed=1 done"]


def test_failing_cell_does_not_stop_the_others_and_is_retried(folder, quick):
    grid = cells(quick, lr=[1e30, 1e-3])
    _, outcome = sweep(grid, folder)
    assert "NaN" in outcome[grid[0].key]
    assert outcome[grid[1].key] == ""
    assert "NaN" in folder.log(grid[0].key).read_text()
    assert sweep(grid, folder)[0] == [grid[0].key]


def test_unexpected_exception_is_named_and_its_traceback_logged(folder, quick, monkeypatch):
    monkeypatch.setattr("complementary.sweeps.worker.run", lambda *_, **__: 1 / 0)
    ((key, error),) = sweep(cells(quick, seed=[0]), folder)[1].items()
    assert error.startswith("ZeroDivisionError: division by zero")
    assert str(folder.log(key)) in error
    assert "Traceback" in folder.log(key).read_text()


def test_interrupted_sweep_continues(folder, quick):
    grid = cells(quick, seed=[0, 1, 2])
    with pytest.raises(KeyboardInterrupt):
        Sweep(grid, folder, Here(folder, until=2)).run()
    done, outcome = sweep(grid, folder)
    assert set(outcome.values()) == {""}
    assert done == [grid[2].key]


def test_claim_refuses_a_second_sweep_and_the_folder_of_a_run(folder, tmp_path):
    with pytest.raises(UserError, match="Another sweep") as caught, folder.claim():
        pass
    assert caught.value.option == "out"
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").touch()
    with pytest.raises(UserError, match="single run"), SweepFolder(tmp_path / "run").claim():
        pass
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.toml"]


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "file/below"])
def test_claim_refuses_a_folder_that_cannot_be_created(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as caught, SweepFolder(tmp_path / name).claim():
        pass
    assert caught.value.option == "out"


CELL = {"key": "0123456789abcdef", "name": "seed=0", "epochs": 3}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "3",
        "[3]",
        "[{}]",
        "[" * 100_000,
        json.dumps([CELL | {"key": "../../x"}]),
        json.dumps([CELL | {"name": None}]),
        json.dumps([CELL | {"epochs": 0}]),
        json.dumps([CELL | {"epochs": "many"}]),
    ],
)
def test_damaged_plan_is_refused(tmp_path, content):
    (tmp_path / "sweep.json").write_text(json.dumps([CELL]))
    assert read_status(tmp_path).count("waiting") == 1
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(UserError, match=r"sweep\.json"):
        read_status(tmp_path)


def test_log_that_cannot_be_written_is_an_error_of_the_cell(folder, quick):
    (cell,) = cells(quick, seed=[0])
    folder.log(cell.key).mkdir()
    assert "cannot be written" in sweep([cell], folder)[1][cell.key]


@pytest.mark.parametrize("content", ["{", "{}", "[1, 2]"])
def test_damaged_result_is_a_failed_cell_until_it_is_deleted(folder, quick, content):
    grid = cells(quick, seed=[0, 1])
    sweep(grid, folder)
    folder.result(grid[1].key).write_text(content)
    status = read_status(folder.root)
    assert [cell.state for cell in status.cells] == ["done", "failed"]
    assert str(folder.result(grid[1].key)) in status.cells[1].error
    done, outcome = sweep(grid, folder)
    assert done == []
    assert "is damaged" in outcome[grid[1].key]
    folder.result(grid[1].key).unlink()
    assert sweep(grid, folder)[1][grid[1].key] == ""


def test_locked_run_is_waited_for(folder, quick, monkeypatch, in_child):
    """On Ray, the process of a node that was given up may still hold the run."""
    (cell,) = cells(quick, seed=[0])
    lock = folder.run(cell.key) / ".lock"
    lock.parent.mkdir()

    def hold_a_while():
        with files.lock(lock):
            (folder.root / "held").write_text("")
            time.sleep(0.5)

    in_child(hold_a_while)
    while not (folder.root / "held").exists():
        time.sleep(0.01)
    monkeypatch.setattr("complementary.sweeps.worker.LOCK_SECONDS", 0.0)
    assert "Another process" in sweep([cell], folder)[1][cell.key]
    monkeypatch.setattr("complementary.sweeps.worker.LOCK_SECONDS", 30.0)
    assert sweep([cell], folder)[1] == {cell.key: ""}


def test_packed_cells_share_a_task_and_log_separately(folder, quick, tmp_path):
    grid = cells(quick.with_(mix="none"), lr=[1e-3, 1e30, 1e-4])
    done, outcome = sweep(grid, folder, pack=3)
    assert done == [grid[0].key]
    assert [bool(outcome[cell.key]) for cell in grid] == [False, True, False]
    run(grid[2].config, tmp_path / "alone")
    assert run_files(folder.run(grid[2].key)) == run_files(tmp_path / "alone")
    for cell in grid:
        logged = folder.log(cell.key).read_text()
        assert [other.name in logged for other in grid] == [other is cell for other in grid]


def test_shared_clusters_are_computed_once_by_cells_side_by_side(folder, quick, tmp_path, monkeypatch):
    """The second cell waits for the lock of the first one in the cache."""
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "MIN_EXAMPLES", 0)
    computed, real = [], assign.cluster_points

    def slowly(*arguments):
        computed.append(1)
        time.sleep(0.5)  # in which the other cell asks for the same clusters
        return real(*arguments)

    monkeypatch.setattr(assign, "cluster_points", slowly)
    assert set(sweep(cells(quick, loss=["s-nl", "dm"]), folder, pack=2)[1].values()) == {""}
    assert len(computed) == 1


class KillWorker(LocalExecutor):
    """Kills the only worker with SIGKILL once all these cells have trained for some epochs."""

    def __init__(self, folder, cells, epochs, retries=1, lanes=1):
        super().__init__(RunCells(folder, checkpoint_seconds=0.02), ["cpu"], retries, lanes)
        self.folder, self.cells, self.epochs, self.victim = folder, cells, epochs, None

    def wait(self, seconds):
        if self.victim is None and all(self._epochs(cell) >= self.epochs for cell in self.cells):
            self.victim = self.folder.note(self.cells[0].key)["process"]
            os.kill(self.victim, signal.SIGKILL)
        return super().wait(0.01)

    def _epochs(self, cell):
        metrics = self.folder.run(cell.key) / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 2])
def test_cells_of_a_killed_worker_resume_to_the_same_bytes(folder, quick, tmp_path, caplog, forked_workers, lanes):
    """With two lanes, both cells of the worker; each cell ends once."""
    grid = cells(quick.with_(mix="none", epochs=40), seed=range(lanes + 1))
    killed = grid[:lanes]
    executor = KillWorker(folder, killed, epochs=3, retries=2, lanes=lanes)
    try:
        outcome = Sweep(grid, folder, executor).run()
    finally:
        executor.close()
    assert outcome == {cell.key: "" for cell in grid}
    assert [r.message.partition(":")[0] for r in caplog.records if "SIGKILL" in r.message] == [c.name for c in killed]
    for cell in killed:
        logged = folder.log(cell.key).read_text()
        assert logged.count(f"process {executor.victim},") == 1
        assert logged.count("process") == 2
        assert logged.count("epoch 1/40 ") == 1  # resumed, not started again
        assert logged.count("finished") == 1
    run(killed[-1].config, tmp_path / "alone")
    assert run_files(folder.run(killed[-1].key)) == run_files(tmp_path / "alone")


@pytest.mark.slow
def test_sweep_stops_a_run_when_its_time_is_over_and_resumes_it_later(folder, quick, forked_workers):
    """The estimate of one second is far too small for a million epochs."""
    (cell,) = cells(quick.with_(mix="none", epochs=1_000_000), seed=[0])
    for _ in range(2):
        executor = LocalExecutor(RunCells(folder, checkpoint_seconds=0.5), ["cpu"])
        started = time.monotonic()
        try:
            assert Sweep([cell], folder, executor, limit=TimeLimit(started + 4, {cell.key: 1.0})).run() == {}
        finally:
            executor.close()
        assert 4 <= time.monotonic() - started < 12
    logged = folder.log(cell.key).read_text()
    assert logged.count("epoch 1/1000000 ") == 1  # resumed, not started again
    assert logged.count("process") == 2


# --- status -------------------------------------------------------------------------------------------------------


def test_status_counts_cells(folder, quick, monkeypatch):
    grid = [*cells(quick, lr=[1e30]), *cells(quick, seed=[3, 4])]
    seen = []

    def look(config, place, **how):
        seen.append(read_status(folder.root))
        return run(config, place, **how)

    monkeypatch.setattr("complementary.sweeps.worker.run", look)
    sweep(grid, folder)
    states = ("done", "running", "failed", "waiting")
    assert [[status.count(state) for state in states] for status in seen] == [[0, 1, 0, 2], [0, 1, 1, 1], [1, 1, 1, 0]]
    assert seen[0].alive
    assert "NaN" in seen[-1].cells[0].error


def test_status_of_an_interrupted_cell(tmp_path, quick):
    """Running while the sweep runs, waiting afterwards, with the share of its epochs."""
    folder = SweepFolder(tmp_path / "sweep")
    self_training = quick.with_(inputs="features", encoder="random", mix="none", epochs=2, self_training=40)
    grid = [*cells(self_training, seed=[0]), *cells(quick, seed=[0])]
    with folder.claim():
        folder.write_plan(grid)
        for cell, lines in zip(grid, (10, 1), strict=True):
            folder.write_note(cell.key, host="here", process=1)
            folder.run(cell.key).mkdir()
            (folder.run(cell.key) / "metrics.jsonl").write_text(lines * "{}\n")
        assert [(cell.state, cell.share) for cell in read_status(folder.root).cells] == [
            ("running", 0.25),
            ("running", 0.5),
        ]
    status = read_status(folder.root)
    assert not status.alive
    assert status.count("waiting") == 2


def test_run_that_adapted_its_recipe_belongs_to_its_cell(folder, monkeypatch):
    monkeypatch.setattr(recipes, "TUNED_CLASSES", 5)  # ten are many then, and the weight decay is halved
    cell = Cell(Config.of(recipe="features", encoder="random", epochs=1, batch=128), "features")
    raw = Cell(cell.config.with_(inputs="raw"), "raw")  # is not adapted
    assert sweep([cell, raw], folder)[1] == {cell.key: "", raw.key: ""}
    (row,) = [row for row in read_results([folder.root]).rows if row["inputs"] == "features"]
    assert row["config_hash"][:16] != cell.key
    assert row["weight_decay"] == pytest.approx(0.005)
    status = read_status(folder.root)
    assert status.count("done") == 2
    assert status.others == 0
    assert sweep([cell, raw], folder)[0] == [], "nothing is left to do"
    folder.run(cell.key).rename(folder.run("0" * 16))
    assert read_status(folder.root).count("done") == 1, "a folder with another name is not taken for its cell"


def test_status_counts_runs_of_earlier_grids(folder, quick):
    first, second = cells(quick, seed=[0, 1, 2]), cells(quick, lr=[1e-2])
    sweep(first, folder)
    sweep([*first, *second], folder)  # a grid that grew
    assert read_status(folder.root).others == 0
    sweep(second, folder)
    assert read_status(folder.root).others == 3
    folder.result(first[0].key).unlink()
    folder.result(first[1].key).write_text("{}")
    status = read_status(folder.root)
    assert status.others == 1
    assert str(folder.result(first[1].key)) in status.damaged[0]


def test_status_of_a_folder_without_a_sweep(tmp_path):
    (tmp_path / "grid.toml").touch()
    for place in (tmp_path, tmp_path / "nowhere", tmp_path / "grid.toml"):
        with pytest.raises(UserError, match="no sweep in"):
            read_status(place)
    for content in ("{", "[1]", '[{"key": 1}]'):
        (tmp_path / "sweep.json").write_text(content)
        with pytest.raises(UserError, match=r"sweep\.json cannot be read"):
            read_status(tmp_path)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [({}, 3), ({"self_training": 5}, 5), ({"recipe": "plnl"}, 6), ({"recipe": "plnl", "inputs": "features"}, 3)],
)
def test_plan_counts_the_epochs_of_all_parts(options, wanted, tmp_path):
    config = Config.of(data="digits", epochs=3, **options)
    folder = SweepFolder(tmp_path)
    folder.write_plan([Cell(config, "x")])
    assert [cell["epochs"] for cell in folder.plan()] == [wanted]
