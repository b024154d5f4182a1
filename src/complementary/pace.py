"""How often lines of progress are written: at most every so many seconds."""

import math
import time

EVERY = 15.0  # seconds between two lines in a log: few enough to be read


class Pace:
    """Says whether the next line is due: not sooner than ``seconds`` after the last one.

    The first is due after as long a time too, or ``at_once``.

        >>> from complementary.pace import Pace
        >>> pace = Pace(60.0, at_once=True)
        >>> [pace.due(), pace.due(), pace.due(anyway=True)]
        [True, False, True]
    """

    def __init__(self, seconds: float = EVERY, at_once: bool = False) -> None:
        self.seconds, self.last = seconds, -math.inf if at_once else time.monotonic()

    def due(self, anyway: bool = False) -> bool:
        """Whether it is time, or a line is written ``anyway``; if so, the next interval begins now."""
        now = time.monotonic()
        if not anyway and now - self.last < self.seconds:
            return False
        self.last = now
        return True
