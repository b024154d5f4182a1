"""A Ray cluster: every task is a Ray task, retried by Ray when its worker or node dies."""

import os
import re
import subprocess
import sys
from importlib import import_module
from typing import Any

from complementary.errors import UserError
from complementary.sweeps.executors import Ended, Failures, OnDeath, Task, silent

PATIENCE = 20.0  # seconds for a cluster to answer; ray.init alone may try for minutes
PROBE = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"
CACHE = "COMPLEMENTARY_CACHE"


def connect(address: str | None) -> Any:
    """Join the cluster at ``address``, or $RAY_ADDRESS, or one that runs on this machine, or start one -> ray."""
    try:
        ray: Any = import_module("ray")
    except ImportError:
        raise UserError("--on ray needs Ray: pip install 'complementary[ray]', or use --on local.") from None
    address = address or os.environ.get("RAY_ADDRESS")
    if address and address != "local":
        _probe(address)
    ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=None if address else False)
    return ray


def _probe(address: str) -> None:
    """Raise a sentence unless a cluster answers; tried in a process of its own, which can be given up."""
    if "://" in address:
        raise UserError(f"The Ray address is {address}, but it must be HOST:PORT, as 'ray start --head' prints it.")
    command = [sys.executable, "-c", PROBE, address]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE)
        why = "" if done.returncode == 0 else _last(done.stderr) or f"exit status {done.returncode}"
    except subprocess.TimeoutExpired as error:
        why = f"not joined within {PATIENCE:g} seconds: {_last(error.stderr) or 'no answer'}"
    if why:
        raise UserError(
            f"The Ray cluster at {address} cannot be joined ({why}); check that 'ray status --address {address}' "
            "works on this machine, or use --on local."
        )


def _last(output: bytes | None) -> str:
    """The last thing that Ray said, without its time, place and process: a cluster that refuses says why."""
    lines = (output or b"").decode(errors="replace").strip().splitlines()
    return re.sub(r"^\[[^]]*\] \S+:\d+: ", "", lines[-1]).rstrip(".") if lines else ""


class RayExecutor:
    """Tasks on a cluster, each with one core and ``gpus`` of a card; ``workers``: so many at once, None: all."""

    def __init__(
        self, ray: Any, device: str = "auto", gpus: float | None = None, retries: int = 2, workers: int | None = None
    ) -> None:
        self._ray, self._device, self._retries, self.workers = ray, device, retries, workers
        self.on_death: OnDeath = silent  # Ray does not say when it tries again
        self._running: dict[Any, Task] = {}
        needs = {"num_cpus": 1, "num_gpus": self._gpus(gpus), "max_retries": retries}
        self._do = ray.remote(**needs)(_do)

    def _gpus(self, asked: float | None) -> float:
        """How much of a card each task gets: as asked, else a whole one where the cluster has cards."""
        cards = self._ray.cluster_resources().get("GPU", 0)
        if asked and not cards:
            raise UserError(f"--gpus-per-run is {asked:g}, but the Ray cluster has no GPU; leave it out.")
        return asked if asked is not None else float(bool(cards) and self._device != "cpu")

    @property
    def free(self) -> bool:
        """Whether fewer than ``workers`` tasks are on the cluster; Ray itself queues any number."""
        return self.workers is None or len(self._running) < self.workers

    def submit(self, task: Task) -> None:
        """Send the task to the cluster."""
        self._running[self._do.remote(task, self._device, os.environ.get(CACHE))] = task

    def wait(self, seconds: float) -> list[Ended]:
        """What ended meanwhile."""
        if not self._running:
            return []
        done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return [self._ended(reference, self._running.pop(reference)) for reference in done]

    def _ended(self, reference: Any, task: Task) -> Ended:
        try:
            return Ended(task.key, self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            said = str(error).strip().splitlines() or [""]
            what = f"{type(error).__name__}: {said[0]}"
            return Ended(task.key, lost=f"Ray gave it up after {self._retries} retries ({what}).")

    def close(self) -> None:
        """Kill what runs, and leave the cluster."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()


def _do(task: Task, device: str, cache: str | None) -> Failures:
    """On the node that Ray chose. Stages must be found by all, so the cache is where the sweep has it."""
    if cache is not None:
        os.environ[CACHE] = cache
    return task.work(device)
