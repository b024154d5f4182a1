import pytest

from complementary.reports.terminal import Pace


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand: clock[0] = seconds."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def asked(clock, pace, times):
    """At which of these times a line is due."""
    found = []
    for clock[0] in times:
        found += [clock[0]] if pace.due() else []
    return found


def test_lines_are_at_least_so_many_seconds_apart(clock):
    assert asked(clock, Pace(15), (101, 114.9, 115, 116, 129.9, 131, 145.9, 146)) == [115, 131, 146]


def test_the_first_may_come_at_once(clock):
    assert asked(clock, Pace(2, at_once=True), (100, 101, 102)) == [100, 102]


def test_a_line_that_is_written_anyway_counts_like_any_other(clock):
    pace = Pace(10)
    clock[0] = 109
    assert pace.due(anyway=True)
    assert asked(clock, pace, (110, 118, 119)) == [119]
