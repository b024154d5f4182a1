"""Run cells on a Ray cluster: every pack of cells is a Ray task, which Ray runs again if its worker or node dies."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from complementary.errors import UserError, import_optional
from complementary.sweeps.grid import Cell
from complementary.sweeps.sweep import Ended, Errors

if TYPE_CHECKING:
    from complementary.sweeps.local import Work

CONNECT_SECONDS = 20.0  # for a cluster to answer; ray.init alone may try for minutes
PROBE = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"
CACHE = "COMPLEMENTARY_CACHE"


def connect(address: str | None) -> Any:
    """Join a Ray cluster and return the module ray.

    Args:
        address: HOST:PORT; None: $RAY_ADDRESS, else a cluster on this machine, which is started if there is none.
    """
    ray = import_optional("ray", "A sweep on Ray")
    address = address or os.environ.get("RAY_ADDRESS")
    if address and address != "local":
        _check_cluster(address)
    ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=None if address else False)
    return ray


def _check_cluster(address: str) -> None:
    """Raise unless the cluster answers; tried in another process, which can be given up after a while."""
    if "://" in address:
        raise UserError(f"The Ray address is {address}, but it must be HOST:PORT, without a protocol.", "address")
    try:
        done = subprocess.run([sys.executable, "-c", PROBE, address], capture_output=True, timeout=CONNECT_SECONDS)
        reason = "" if done.returncode == 0 else _last_line(done.stderr) or f"exit status {done.returncode}"
    except subprocess.TimeoutExpired as error:
        reason = f"not joined within {CONNECT_SECONDS:g} seconds: {_last_line(error.stderr) or 'no answer'}"
    if reason:
        advice = "check that 'ray status' works on this machine"
        raise UserError(f"The Ray cluster at {address} cannot be joined ({reason}); {advice}.", "address")


def _last_line(output: bytes | None) -> str:
    """The last line that Ray printed, without time, source line and process."""
    lines = (output or b"").decode(errors="replace").strip().splitlines()
    return re.sub(r"^\[[^]]*\] \S+:\d+: ", "", lines[-1]).rstrip(".") if lines else ""


class RayExecutor:
    """Tasks on a Ray cluster, each with one CPU core.

    Args:
        work: What to do with the cells of a task, as for `LocalExecutor`.
        ray: The module, connected to a cluster.
        device: As in ``cll train``.
        gpus: Share of a GPU per task; None: a whole one if the cluster has GPUs.
        retries: How often Ray runs a task again after its worker or node died.
        workers: Maximum number of tasks at once; None: as many as fit.
    """

    def __init__(
        self,
        work: "Work",
        ray: Any,
        device: str = "auto",
        gpus: float | None = None,
        retries: int = 2,
        workers: int | None = None,
    ) -> None:
        self._work, self._ray, self._device, self._retries, self._workers = work, ray, device, retries, workers
        self._running: dict[Any, tuple[str, Sequence[Cell]]] = {}
        self._remote = ray.remote(num_cpus=1, num_gpus=self._gpus(gpus), max_retries=retries)(_run_remote)

    def _gpus(self, gpus: float | None) -> float:
        available = self._ray.cluster_resources().get("GPU", 0)
        if gpus and not available:
            raise UserError(f"gpus_per_run is {gpus:g}, but the Ray cluster has no GPU.", "gpus_per_run")
        return gpus if gpus is not None else float(bool(available) and self._device != "cpu")

    @property
    def free(self) -> bool:
        """Whether fewer than ``workers`` tasks are on the cluster; Ray itself queues any number."""
        return self._workers is None or len(self._running) < self._workers

    def submit(self, key: str, cells: Sequence[Cell]) -> None:
        """Send the task to the cluster."""
        reference = self._remote.remote(self._work, cells, self._device, os.environ.get(CACHE))
        self._running[reference] = (key, cells)

    def wait(self, seconds: float) -> list[Ended]:
        """The tasks that ended, or that Ray gave up."""
        if not self._running:
            return []
        done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return [self._ended(reference, *self._running.pop(reference)) for reference in done]

    def _ended(self, reference: Any, key: str, cells: Sequence[Cell]) -> Ended:
        try:
            return Ended(key, self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            first = (str(error).strip().splitlines() or [""])[0]
            message = f"Ray gave it up after {self._retries} retries ({type(error).__name__}: {first})."
            return Ended(key, dict.fromkeys((cell.key for cell in cells), message))

    def close(self) -> None:
        """Cancel what runs and leave the cluster."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()


def _run_remote(work: "Work", cells: Sequence[Cell], device: str, cache: str | None) -> Errors:
    """Runs on the node that Ray chose, with the cache folder of the sweep, so that nodes can share encoders."""
    logging.captureWarnings(True)  # into the logs of the cells
    if cache is not None:
        os.environ[CACHE] = cache
    return work(cells, device)
