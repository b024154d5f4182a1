import sys

import pytest

from complementary.data import load
from complementary.errors import UserError
from complementary.reports import terminal as screen


@pytest.fixture
def without(monkeypatch):
    """Pretend that a package is not installed."""

    def hide(*names):
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)

    return hide


def test_a_missing_package_is_one_sentence(without):
    without("PIL.Image", "sklearn.datasets")
    with pytest.raises(UserError, match=r"^Decoding pictures needs pillow: pip install 'complementary\[cli\]'\.$"):
        screen.pillow_image()
    with pytest.raises(UserError, match=r"pip install 'complementary\[cli\]'"):
        load("digits")


def test_rich_is_not_needed(without):
    without("rich.table")
    assert screen.rich_or_none("rich.table.Table") is None


class Terminal:
    """A stderr that claims to be a terminal."""

    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.mark.parametrize("of_bytes", [True, False])
def test_a_bar_is_drawn_on_a_terminal(monkeypatch, of_bytes):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with screen.bar("decoding", 100, of_bytes) as advance:
        advance(50)
    assert "decoding" in terminal.text


def test_no_bar_elsewhere(capsys):
    with screen.bar("decoding", 100) as advance:
        advance(50)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (170_500_000, "170.5 MB"), (2e10, "20.0 GB")]
)
def test_sizes_for_people(count, words):
    assert screen.size(count) == words


def test_tables_without_rich(monkeypatch, capsys):
    monkeypatch.setattr(screen, "rich_or_none", lambda _: None)
    screen.print_table(("a", "b"), [("long name", "1"), ("x", "2")])
    assert capsys.readouterr().out == "a          b\nlong name  1\nx          2\n"
