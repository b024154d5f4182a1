"""A real Ray cluster of two nodes on this machine, of which one is killed in the middle of a sweep."""

import socket
import sys
import time

import pytest

from complementary.errors import UserError
from complementary.sweeps.folder import SweepFolder
from complementary.sweeps.grid import Cell
from complementary.sweeps.ray import RayExecutor, connect
from complementary.sweeps.results import Index
from complementary.sweeps.sweep import Sweep, claimed
from complementary.sweeps.worker import How
from complementary.training.run import run

ray = pytest.importorskip("ray")
KEPT = ("last.safetensors", "selected.safetensors", "metrics.jsonl", "config.toml")


@pytest.fixture
def cluster():
    """A head without cores, so that only the two nodes beside it work."""
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **memory})
    yield cluster, [cluster.add_node(num_cpus=1, **memory) for _ in range(2)]
    ray.shutdown()
    cluster.shutdown()


class Assassin(RayExecutor):
    """Kills a node once both nodes are in the middle of a cell."""

    def __init__(self, folder, cells, kill):
        super().__init__(connect(None), retries=2)
        self.folder, self.cells, self.kill, self.under_way = folder, cells, kill, set()

    def wait(self, seconds):
        begun = {cell.key for cell in self.cells if self._epochs(cell) >= 2}
        if not self.under_way and len(begun) >= 2:
            self.under_way = begun
            self.kill()
        return super().wait(0.02)

    def _epochs(self, cell):
        try:
            return (self.folder.run(cell.key) / "metrics.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0


def test_a_node_dies_in_mid_sweep_and_every_cell_ends_once(tmp_path, quick, cluster, monkeypatch):
    cluster, nodes = cluster
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    folder = SweepFolder(tmp_path / "sweep")
    base = quick.with_(mix="none", epochs=80)
    cells = [Cell(base.with_(seed=seed), f"seed={seed}") for seed in range(3)]
    told = []
    with claimed(folder):
        executor = Assassin(folder, cells, lambda: cluster.remove_node(nodes[1], allow_graceful=False))
        try:
            outcome = Sweep(
                cells, folder, executor, How(checkpoint_seconds=0.02), tell=lambda *a: told.append(a[:2])
            ).run()
        finally:
            executor.close()
    assert outcome == {cell.key: "" for cell in cells}
    assert sorted(name for what, name in told if what == "done") == ["seed=0", "seed=1", "seed=2"]
    logs = {cell.key: folder.log(cell.key).read_text() for cell in cells}
    assert {log.count("finished") for log in logs.values()} == {1}
    resumed = [key for key, log in logs.items() if log.count("process") == 2]
    assert len(resumed) == 1  # the one on the node that died
    assert resumed[0] in executor.under_way
    assert logs[resumed[0]].count("epoch 1/80 ") == 1  # it went on, and did not begin again
    with Index([folder.root]) as index:
        assert sorted(row["seed"] for row in index.select()) == [0, 1, 2]
        assert index.repeated == 0
    again = next(cell for cell in cells if cell.key == resumed[0])
    run(again.config, tmp_path / "alone")
    for name in KEPT:
        assert (folder.run(again.key) / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


@pytest.mark.parametrize("kind", ["nobody listens", "somebody else listens"])
def test_an_address_that_does_not_answer_is_a_sentence_within_seconds(monkeypatch, kind):
    monkeypatch.setattr("complementary.sweeps.ray.PATIENCE", 3.0)
    with socket.socket() as listener:
        listener.bind(("", 0))
        if kind == "somebody else listens":
            listener.listen()
        started = time.monotonic()
        with pytest.raises(UserError, match=r"Ray cluster at 127.0.0.1:\d+ cannot be joined \(not joined within 3"):
            connect(f"127.0.0.1:{listener.getsockname()[1]}")
        assert time.monotonic() - started < 10


def test_a_cluster_that_refuses_is_quoted(monkeypatch):
    said = "[2026-11-15 11:17:27,196 W 1 1] gcs_client.cc:210: Failed to get cluster ID: Unauthenticated: no token"
    monkeypatch.setattr("complementary.sweeps.ray.PATIENCE", 3.0)
    probe = f"import sys, time; print({said!r}, file=sys.stderr, flush=True); time.sleep(30)"
    monkeypatch.setattr("complementary.sweeps.ray.PROBE", probe)
    with pytest.raises(
        UserError, match=r"within 3 seconds: Failed to get cluster ID: Unauthenticated: no token\); check"
    ):
        connect("head:6379")


def test_an_address_that_is_none(monkeypatch):
    with pytest.raises(UserError, match=r"cannot be joined \(ValueError: Invalid address format: nonsense\)"):
        connect("nonsense")
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(UserError, match="must be HOST:PORT"):
        connect(None)


def test_without_ray_there_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"needs Ray: pip install 'complementary\[ray\]'"):
        connect(None)


class Pretended:
    """As much of ray as a constructor sees."""

    def __init__(self, cards):
        self.cards = cards

    def cluster_resources(self):
        return {"CPU": 4.0} | ({"GPU": self.cards} if self.cards else {})

    def remote(self, **needs):
        self.needs = needs
        return lambda function: function


@pytest.mark.parametrize(
    ("cards", "device", "asked", "given"),
    [(0, "auto", None, 0), (2, "auto", None, 1), (2, "cpu", None, 0), (2, "auto", 0.25, 0.25)],
)
def test_runs_get_a_card_or_the_part_of_one_that_was_asked_for(cards, device, asked, given):
    pretended = Pretended(cards)
    RayExecutor(pretended, device, asked, retries=5)
    assert pretended.needs == {"num_cpus": 1, "num_gpus": given, "max_retries": 5}


def test_a_part_of_a_card_needs_a_card():
    with pytest.raises(UserError, match=r"--gpus-per-run is 0.5, but the Ray cluster has no GPU"):
        RayExecutor(Pretended(0), gpus=0.5)
