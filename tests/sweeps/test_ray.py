"""A real Ray cluster of two nodes on this machine, one of which is killed during a sweep."""

import socket
import sys
import time

import pytest

from complementary.errors import UserError
from complementary.sweeps.grid import Cell
from complementary.sweeps.ray import RayExecutor, connect
from complementary.sweeps.results import read_results
from complementary.sweeps.sweep import Sweep, SweepFolder
from complementary.sweeps.worker import RunCells
from complementary.training.run import run
from tests.helpers import run_files

ray = pytest.importorskip("ray")
EPOCHS = 40


@pytest.fixture
def cluster():
    """The head and another node, with one core each -> the cluster, the other node."""
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 80_000_000}
    checks = {"health_check_period_ms": 500, "health_check_failure_threshold": 5}  # a dead node is noticed after 2.5 s
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": checks, **memory}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster, cluster.add_node(num_cpus=1, **memory)
    ray.shutdown()
    cluster.shutdown()


class KillNode(RayExecutor):
    """Calls ``kill`` once two cells have trained for two epochs."""

    def __init__(self, folder, cells, kill):
        super().__init__(RunCells(folder, checkpoint_seconds=0.02), connect(None), retries=2)
        self.folder, self.cells, self.kill, self.started = folder, cells, kill, set()

    def wait(self, seconds):
        started = {cell.key for cell in self.cells if self._epochs(cell) >= 2}
        if not self.started and len(started) >= 2:
            self.started = started
            self.kill()
        return super().wait(0.02)

    def _epochs(self, cell):
        try:
            return (self.folder.run(cell.key) / "metrics.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0


@pytest.mark.slow
def test_cells_of_a_killed_node_resume_to_the_same_bytes_and_end_once(tmp_path, quick, cluster, monkeypatch):
    cluster, node = cluster
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    monkeypatch.setenv("COMPLEMENTARY_CACHE", str(tmp_path / "cache"))
    folder = SweepFolder(tmp_path / "sweep")
    base = quick.with_(mix="none", epochs=EPOCHS)
    cells = [Cell(base.with_(seed=seed), f"seed={seed}") for seed in range(3)]
    with folder.claim():
        executor = KillNode(folder, cells, lambda: cluster.remove_node(node, allow_graceful=False))
        try:
            outcome = Sweep(cells, folder, executor).run()
        finally:
            executor.close()
    assert outcome == {cell.key: "" for cell in cells}
    logs = {cell.key: folder.log(cell.key).read_text() for cell in cells}
    assert {text.count("finished") for text in logs.values()} == {1}
    (resumed,) = [cell for cell in cells if logs[cell.key].count("process") == 2]  # it was on the node that died
    assert resumed.key in executor.started
    assert logs[resumed.key].count(f"epoch 1/{EPOCHS} ") == 1  # resumed, not started again
    results = read_results([folder.root])
    assert sorted(row["seed"] for row in results.rows) == [0, 1, 2]
    run(resumed.config, tmp_path / "alone")
    assert run_files(folder.run(resumed.key)) == run_files(tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize("listens", [True, False])
def test_connect_reports_an_address_that_does_not_answer_within_seconds(monkeypatch, listens):
    monkeypatch.setattr("complementary.sweeps.ray.CONNECT_SECONDS", 3.0)
    with socket.socket() as listener:
        listener.bind(("", 0))
        if listens:
            listener.listen()
        started = time.monotonic()
        with pytest.raises(UserError, match=r"127\.0\.0\.1:\d+ .* within 3 seconds") as caught:
            connect(f"127.0.0.1:{listener.getsockname()[1]}")
        assert time.monotonic() - started < 10
        assert caught.value.option == "address"


def test_connect_quotes_the_reason_of_a_cluster_that_refuses(monkeypatch):
    printed = "[2026-11-15 11:17:27,196 W 1 1] gcs_client.cc:210: Failed to get cluster ID: Unauthenticated: no token"
    monkeypatch.setattr("complementary.sweeps.ray.CONNECT_SECONDS", 1.0)
    probe = f"import sys, time; print({printed!r}, file=sys.stderr, flush=True); time.sleep(30)"
    monkeypatch.setattr("complementary.sweeps.ray.PROBE", probe)
    with pytest.raises(UserError, match=r"seconds: Failed to get cluster ID: Unauthenticated: no token\)"):
        connect("head:6379")


@pytest.mark.slow
def test_connect_reports_a_bad_address():
    with pytest.raises(UserError, match="Invalid address format: nonsense"):
        connect("nonsense")


def test_connect_refuses_a_client_address(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(UserError, match="HOST:PORT"):
        connect(None)


def test_connect_without_ray_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install '\.\[ray\]'"):
        connect(None)


class FakeRay:
    """As much of ray as the constructor uses."""

    def __init__(self, gpus):
        self.gpus = gpus

    def cluster_resources(self):
        return {"CPU": 4.0} | ({"GPU": self.gpus} if self.gpus else {})

    def remote(self, **needs):
        self.needs = needs
        return lambda function: function


@pytest.mark.parametrize(
    ("gpus", "device", "asked", "given"),
    [(0, "auto", None, 0), (2, "auto", None, 1), (2, "cpu", None, 0), (2, "auto", 0.25, 0.25)],
)
def test_tasks_get_a_gpu_or_the_share_that_was_asked_for(gpus, device, asked, given):
    fake = FakeRay(gpus)
    RayExecutor(print, fake, device, asked, retries=5)
    assert fake.needs == {"num_cpus": 1, "num_gpus": given, "max_retries": 5}


def test_share_of_a_gpu_needs_a_cluster_with_gpus():
    with pytest.raises(UserError, match=r"0\.5.* no GPU") as caught:
        RayExecutor(print, FakeRay(0), gpus=0.5)
    assert caught.value.option == "gpus_per_run"
