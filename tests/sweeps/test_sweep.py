import json
import os
import signal
import time

import pytest

from complementary import files
from complementary.errors import UserError
from complementary.sweeps.executors import Ended
from complementary.sweeps.folder import SweepFolder
from complementary.sweeps.grid import Cell
from complementary.sweeps.local import LocalExecutor
from complementary.sweeps.results import Index
from complementary.sweeps.status import Earlier, read_status
from complementary.sweeps.sweep import Sweep, claimed
from complementary.sweeps.worker import How
from complementary.training.run import run

KEPT = ("last.safetensors", "selected.safetensors", "metrics.jsonl", "config.toml")


class Here:
    """Does the work in this process, the last of up to ``room`` tasks first; Ctrl-C after ``until`` tasks."""

    workers = 1

    def __init__(self, until=None, room=1):
        self.done, self.until, self.room, self.queue = [], until, room, []

    @property
    def free(self):
        return len(self.queue) < self.room

    def submit(self, task):
        self.queue.append(task)

    def wait(self, seconds):
        if len(self.done) == self.until:
            raise KeyboardInterrupt
        task = self.queue.pop()
        self.done.append(task.key)
        return [Ended(task.key, task.work("cpu"))]

    def close(self):
        pass


@pytest.fixture
def folder(tmp_path):
    folder = SweepFolder(tmp_path / "sweep")
    folder.make()
    return folder


def cells(base, **options):
    """One cell per value of the single option."""
    ((name, values),) = options.items()
    return [Cell(base.with_(**{name: value}), f"{name}={value}") for value in values]


def contents(folder):
    return {name: (folder / name).read_bytes() for name in KEPT}


def test_every_cell_is_run_once_and_is_the_run_that_cll_train_makes(folder, quick, tmp_path):
    executor, grid = Here(), cells(quick, seed=[0, 1])
    assert Sweep(grid, folder, executor).run() == {cell.key: "" for cell in grid}
    assert executor.done == [cell.key for cell in grid]
    run(grid[1].config, tmp_path / "alone")
    assert contents(folder.run(grid[1].key)) == contents(tmp_path / "alone")
    assert "epoch 2/2 loss" in folder.log(grid[0].key).read_text()
    with Index([folder.root]) as index:
        assert sorted(row["config_hash"][:16] for row in index.select()) == sorted(cell.key for cell in grid)


def test_what_is_done_is_skipped_and_more_seeds_are_added(folder, quick):
    Sweep(cells(quick, seed=[0]), folder, Here()).run()
    told, executor, grid = [], Here(), cells(quick, seed=[0, 1])
    Sweep(grid, folder, executor, tell=lambda *what: told.append(what[:2])).run()
    assert executor.done == [grid[1].key]
    assert told == [("found", "seed=0"), ("starts", "seed=1"), ("done", "seed=1")]


def test_a_failing_cell_does_not_stop_the_others_and_is_tried_again(folder, quick):
    grid = cells(quick, lr=[1e30, 1e-3])
    outcome = Sweep(grid, folder, Here()).run()
    assert "NaN or infinite" in outcome[grid[0].key]
    assert outcome[grid[1].key] == ""
    assert "NaN or infinite" in folder.log(grid[0].key).read_text()
    again = Here()
    Sweep(grid, folder, again).run()
    assert again.done == [grid[0].key]


def test_an_error_of_our_own_is_named_with_the_log_that_has_all_of_it(folder, quick, monkeypatch):
    monkeypatch.setattr("complementary.sweeps.worker.run", lambda *_, **__: 1 / 0)
    ((_, why),) = Sweep(cells(quick, seed=[0]), folder, Here()).run().items()
    assert why.startswith("ZeroDivisionError: division by zero (the whole story is in ")
    assert "Traceback" in next((folder.root / "logs").iterdir()).read_text()


def test_a_shared_stage_runs_once_before_its_cells(folder, quick, monkeypatch):
    made = []
    monkeypatch.setattr("complementary.sweeps.worker.clusters_of", lambda config, *_: made.append(config.seed))
    executor, grid = Here(room=9), [*cells(quick, loss=["s-nl", "dm"]), *cells(quick, mix=["none"])]
    assert set(Sweep(grid, folder, executor).run().values()) == {""}
    assert made == [0]
    free, stage, *rest = executor.done
    assert free == grid[2].key  # it needs no clusters, and waits for none
    assert stage.startswith("clusters-")
    assert sorted(rest) == sorted(cell.key for cell in grid[:2])


def test_a_failed_stage_fails_its_cells_with_its_sentence_and_no_others(folder, quick, monkeypatch):
    grid = [*cells(quick.with_(encoder="oracle"), loss=["s-nl", "dm"]), *cells(quick, mix=["none"])]
    outcome = Sweep(grid, folder, Here()).run()
    *failed, plain = [outcome[cell.key] for cell in grid]
    assert plain == ""
    for why in failed:
        assert why.startswith("What it shares with other cells could not be made: The encoder 'oracle' is not known")


def test_a_failed_encoder_fails_the_clusters_and_cells_behind_it(folder, quick):
    base = quick.with_(encoder="simsiam", data="nowhere.npz")
    grid = [*cells(base, loss=["s-nl", "dm"]), *cells(base, clusters=[5])]
    executor = Here()
    outcome = Sweep(grid, folder, executor).run()
    assert len(executor.done) == 1
    assert all("nowhere.npz" in why for why in outcome.values())


def test_a_sweep_that_was_stopped_goes_on(folder, quick):
    grid = cells(quick, seed=[0, 1, 2])
    with pytest.raises(KeyboardInterrupt):
        Sweep(grid, folder, Here(until=2)).run()
    rest = Here()
    assert set(Sweep(grid, folder, rest).run().values()) == {""}
    assert rest.done == [grid[2].key]


def test_two_sweeps_do_not_share_a_folder(folder):
    with claimed(folder), pytest.raises(UserError, match="Another sweep is running in"), claimed(folder):
        pass
    with claimed(folder):
        pass


def test_a_damaged_result_is_a_failure_of_its_cell(folder, quick):
    grid = cells(quick, seed=[0])
    Sweep(grid, folder, Here()).run()
    folder.result(grid[0].key).write_text("{")
    why = Sweep(grid, folder, Here()).run()[grid[0].key]
    assert "is damaged: it is not whole JSON" in why
    assert "--skip-damaged" not in why  # no option of a sweep, nor of its status


@pytest.mark.parametrize("content", ["{}", "[1, 2]"])
def test_whole_json_that_is_no_result_is_damage_for_the_sweep_and_its_status(folder, quick, content):
    grid = cells(quick, seed=[0, 1])
    Sweep(grid, folder, Here()).run()
    folder.result(grid[1].key).write_text(content)
    status = read_status(folder.root)
    assert [cell.state for cell in status.cells] == ["done", "failed"]
    assert "is damaged: it is whole JSON, but not the result" in status.cells[1].why
    assert "delete it: then the same sweep makes it anew" in status.cells[1].why
    assert "is damaged" in Sweep(grid, folder, Here()).run()[grid[1].key]
    folder.result(grid[1].key).unlink()
    assert Sweep(grid, folder, Here()).run()[grid[1].key] == ""


def test_runs_of_an_earlier_grid_are_not_forgotten(folder, quick):
    first, second = cells(quick, seed=[0, 1, 2]), cells(quick, lr=[1e-2])
    Sweep(first, folder, Here()).run()
    Sweep([*first, *second], folder, Here()).run()  # a grid that grew
    assert read_status(folder.root).earlier == Earlier(0, 0, ())
    Sweep(second, folder, Here()).run()
    assert read_status(folder.root).earlier == Earlier(3, 0, ())
    folder.result(first[0].key).unlink()
    folder.result(first[1].key).write_text("{}")
    earlier = read_status(folder.root).earlier
    assert (earlier.finished, earlier.unfinished) == (1, 1)
    assert f"{folder.result(first[1].key)} is damaged" in earlier.damaged[0]


def test_a_result_of_an_earlier_version_counts(folder, quick):
    """Its hash was another, since there were fewer options then; the configuration is the same."""
    grid = cells(quick, seed=[0])
    Sweep(grid, folder, Here()).run()
    content = json.loads(folder.result(grid[0].key).read_text()) | {"config_hash": "of then"}
    del content["config"]["mixing"]["clean_pass"]
    folder.result(grid[0].key).write_text(json.dumps(content))
    folder.run(grid[0].key).rename(folder.run("of-then"))
    executor = Here()
    assert Sweep(grid, folder, executor).run() == {grid[0].key: ""}
    assert executor.done == []
    assert read_status(folder.root).count("done") == 1


def test_a_run_that_a_dying_process_still_holds_is_waited_for(folder, quick, monkeypatch, in_child):
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
    monkeypatch.setattr("complementary.sweeps.worker.LOCK_PATIENCE", 0.0)
    assert "Another process is training in" in Sweep([cell], folder, Here()).run()[cell.key]
    monkeypatch.setattr("complementary.sweeps.worker.LOCK_PATIENCE", 30.0)
    assert Sweep([cell], folder, Here()).run() == {cell.key: ""}


def test_several_cells_can_share_a_worker(folder, quick, tmp_path):
    executor, grid = Here(), cells(quick.with_(mix="none"), lr=[1e-3, 1e30, 1e-4])
    outcome = Sweep(grid, folder, executor, pack=3).run()
    assert executor.done == [grid[0].key]
    assert [bool(outcome[cell.key]) for cell in grid] == [False, True, False]
    run(grid[2].config, tmp_path / "alone")
    assert contents(folder.run(grid[2].key)) == contents(tmp_path / "alone")


class Assassin(LocalExecutor):
    """Kills the only worker once, with -9, when all these cells are in the middle."""

    def __init__(self, folder, cells, epochs, retries=1, lanes=1):
        super().__init__(["cpu"], retries, lanes)
        self.folder, self.cells, self.epochs, self.victim = folder, cells, epochs, None

    def wait(self, seconds):
        if self.victim is None and all(self._epochs(cell) >= self.epochs for cell in self.cells):
            self.victim = self.folder.note(self.cells[0].key)["process"]
            os.kill(self.victim, signal.SIGKILL)
        return super().wait(0.01)

    def _epochs(self, cell):
        metrics = self.folder.run(cell.key) / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def test_a_killed_worker_is_replaced_and_its_cell_resumed_to_the_same_bytes(folder, quick, tmp_path):
    grid = cells(quick.with_(mix="none", epochs=60), seed=[0, 1])
    executor, told = Assassin(folder, grid[:1], epochs=3), []
    try:
        tell = lambda *what: told.append(what)  # noqa: E731
        outcome = Sweep(grid, folder, executor, How(checkpoint_seconds=0.02), tell=tell).run()
    finally:
        executor.close()
    assert told[1] == ("goes on", "seed=0", "Its process died by SIGKILL; a new one takes it up.", True)
    assert len(told) == 5
    assert set(outcome.values()) == {""}
    log = folder.log(grid[0].key).read_text()
    assert f"process {executor.victim}," in log
    assert log.count("process") == 2
    assert log.count("epoch 1/60 ") == 1  # it went on, and did not begin again
    assert log.count("finished") == 1
    run(grid[0].config, tmp_path / "alone")
    assert contents(folder.run(grid[0].key)) == contents(tmp_path / "alone")


def test_both_cells_of_a_killed_worker_are_resumed_to_the_same_bytes(folder, quick, tmp_path):
    told, grid = [], cells(quick.with_(mix="none", epochs=60), seed=[0, 1, 2])
    executor = Assassin(folder, grid[:2], epochs=3, retries=2, lanes=2)
    try:
        tell = lambda *what: told.append(what[:2])  # noqa: E731
        outcome = Sweep(grid, folder, executor, How(checkpoint_seconds=0.02), tell=tell).run()
    finally:
        executor.close()
    assert outcome == {cell.key: "" for cell in grid}
    usual = [(what, cell.name) for what in ("starts", "done") for cell in grid]
    assert sorted(told) == sorted([*usual, *(("goes on", cell.name) for cell in grid[:2])])
    for cell in grid[:2]:
        log = folder.log(cell.key).read_text()
        assert log.count(f"process {executor.victim},") == 1
        assert log.count("process") == 2
        assert log.count("epoch 1/60 ") == 1  # it went on, and did not begin again
        assert log.count("finished") == 1
        run(cell.config, tmp_path / cell.key)
        assert contents(folder.run(cell.key)) == contents(tmp_path / cell.key)


# --- status -------------------------------------------------------------------------------------------


def test_status_counts_and_estimates(folder, quick):
    grid = [*cells(quick.with_(epochs=4), seed=[0]), *cells(quick, lr=[1e30]), *cells(quick, seed=[3, 4])]
    looks = []

    def tell(happening, name, *_):
        if happening == "starts":
            looks.append(read_status(folder.root))

    with claimed(folder):
        Sweep(grid, folder, Here(), tell=tell).run()
    first, last = looks[0], looks[-1]
    assert first.seconds_left() is None
    states = ("done", "running", "failed", "waiting")
    assert [first.count(state) for state in states] == [0, 0, 0, 4]
    assert [last.count(state) for state in states] == [2, 0, 1, 1]
    assert last.alive
    assert "NaN" in next(cell.why for cell in last.cells if cell.state == "failed")
    done = [cell for cell in last.cells if cell.state == "done"]
    pace = sum(cell.seconds / cell.epochs for cell in done) / 2
    assert last.seconds_left() == pytest.approx(2 * pace)
    after = read_status(folder.root)
    assert not after.alive
    assert after.seconds_left() == 0


def test_a_cell_runs_only_while_its_sweep_does(folder, quick, monkeypatch):
    seen = []
    real = run

    def look(config, place, **how):
        seen.append(read_status(folder.root))
        return real(config, place, **how)

    monkeypatch.setattr("complementary.sweeps.worker.run", look)
    grid = cells(quick, seed=[0])
    with claimed(folder):
        Sweep(grid, folder, Here()).run()
    assert seen[0].count("running") == 1
    folder.result(grid[0].key).unlink()  # as after a kill: begun, not finished, and nobody at work
    assert read_status(folder.root).count("waiting") == 1


def test_status_of_a_folder_without_a_sweep(tmp_path):
    with pytest.raises(UserError, match="There is no sweep in"):
        read_status(tmp_path)
    for content in ("{", "{}", "[]"):
        (tmp_path / "sweep.json").write_text(content)
        with pytest.raises(UserError, match=r"sweep.json cannot be read"):
            read_status(tmp_path)


def test_a_cell_that_refines_is_measured_by_its_refining(folder, quick):
    """The epochs of its metrics are those of the refining, and it is no measure for other cells."""
    refined = quick.with_(inputs="features", encoder="random", mix="none", epochs=2, self_training=40)
    grid = [*cells(refined, seed=[0]), *cells(quick.with_(mix="none"), seed=[0, 1])]
    with claimed(folder):
        Sweep(grid[1:2], folder, Here()).run()
    Sweep(grid, folder, Here())._write_plan()
    folder.write_note(grid[1].key, seconds=3.0)
    folder.run(grid[0].key).mkdir()
    (folder.run(grid[0].key) / "metrics.jsonl").write_text(10 * "{}\n")
    cell, _, other = read_status(folder.root).cells
    assert (cell.epochs, cell.share) == (40, 0.25)
    assert cell.likeness()[1] != other.likeness()[1]


def test_likes_are_judged_by_their_likes(folder, quick):
    """A cell of another mixer takes another time per epoch."""
    grid = [*cells(quick, mix=["none", "icm"]), *cells(quick.with_(seed=1), mix=["none", "icm"])]
    Sweep(grid, folder, Here()).run()
    for cell, seconds in zip(grid, (10.0, 30.0), strict=False):
        folder.write_note(cell.key, seconds=seconds)
    for cell in grid[2:]:
        folder.result(cell.key).unlink()
        (folder.run(cell.key) / "metrics.jsonl").write_text("")
    assert read_status(folder.root).seconds_left() == pytest.approx(40.0)
    plan = folder.plan()
    folder.write_plan(plan | {"workers": 2})
    assert read_status(folder.root).seconds_left() == pytest.approx(30.0)  # the longest alone takes that
    assert json.loads((folder.root / "sweep.json").read_text())["workers"] == 2


def test_a_file_has_no_status(tmp_path):
    (tmp_path / "g.toml").touch()
    with pytest.raises(UserError, match=r"g.toml is a file, but a sweep is a folder; name the --out of the sweep"):
        read_status(tmp_path / "g.toml")


def test_the_folder_of_a_single_run_is_no_place_for_a_sweep(tmp_path):
    (tmp_path / "config.toml").touch()
    with pytest.raises(UserError, match="is the folder of a single run; choose another --out"):
        SweepFolder(tmp_path).make()
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]
