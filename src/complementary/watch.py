"""Notice that another process of a training is gone, though the main thread is deep in a wait for it.

A thread looks once a second: has torchrun told us to end (it does so when a process died)? Does the next process
still count its heartbeats in the store? Is the store still there? If not, the main thread gets a few seconds to
stop by itself; then this one says the sentence and ends the process.
"""

import os
import select
import signal
import sys
import threading
import time
from datetime import timedelta
from typing import Any, NoReturn

from complementary.ranks import LOST

GRACE = 5.0  # seconds for the main thread to end in order
PATIENCE = 60.0  # seconds without a heartbeat until a process counts as gone


class Watch:
    """The thread, from its start in process ``rank`` of ``size`` on."""

    def __init__(self, who: str, rank: int, size: int) -> None:
        self.who, self.rank, self.size = who, rank, size
        self.ears, self.mouth = _store(), _store()  # a client serves one thread at a time
        self.told, write = os.pipe()
        os.set_blocking(write, False)
        signal.signal(signal.SIGTERM, lambda *_: None)  # what counts is the byte that arrives in the pipe
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.ending: float | None = None
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self.thread.start()

    def may_speak(self) -> bool:
        """Whether no other process has said yet why the training ends; then none will after this one."""
        try:
            return int(self.mouth.add("spoken", 1)) == 1
        except RuntimeError:  # the store is gone, and with it whoever could have spoken
            return True

    def end_soon(self) -> None:
        """The main thread is ending: if it gets stuck on its way, end the process."""
        self.ending = self.ending or time.monotonic()

    def close(self) -> None:
        """All went well: watch no longer."""
        self.closed.set()
        self.thread.join()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _watch(self) -> None:
        neighbour, beats, changed = (self.rank + 1) % self.size, 0, time.monotonic()
        while not self.closed.is_set():
            if select.select([self.told], [], [], 1.0)[0] and signal.SIGTERM in os.read(self.told, 100):
                self.end_soon()
            try:
                self.ears.add(f"beat/{self.rank}", 1)
                heard = int(self.ears.add(f"beat/{neighbour}", 0))
            except RuntimeError:
                self.end_soon()
                heard = -1
            if heard != beats:
                beats, changed = heard, time.monotonic()
            if beats and time.monotonic() - changed > PATIENCE:  # it may take its time to start
                self.end_soon()
            if self.ending is not None and time.monotonic() - self.ending > GRACE and not self.closed.is_set():
                self._end()

    def _end(self) -> NoReturn:
        if self.may_speak():
            print(f"{self.who}: {LOST}", file=sys.stderr, flush=True)
        os._exit(2)


def _store() -> Any:
    """A new client of the store that torchrun keeps for its processes."""
    from torch import distributed

    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    client = distributed.TCPStore(*place, is_master=False, timeout=timedelta(seconds=PATIENCE))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return distributed.PrefixStore(f"complementary/{attempt}", client)
