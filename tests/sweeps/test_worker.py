import contextlib
import os

from complementary.sweeps.worker import _OUTPUT


def test_output_of_several_goes_to_the_log_of_the_eldest_and_then_where_it_went_before(tmp_path, capfd):
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    first.enter_context(_OUTPUT.to(tmp_path / "first"))
    os.write(1, b"one\n")
    second.enter_context(_OUTPUT.to(tmp_path / "second"))
    os.write(2, b"two\n")
    first.close()
    os.write(1, b"three\n")
    second.close()
    os.write(1, b"four\n")
    with _OUTPUT.to(tmp_path / "first"):
        os.write(1, b"five\n")
    assert (tmp_path / "first").read_text().split() == ["one", "two", "five"]
    assert (tmp_path / "second").read_text().split() == ["three"]
    assert capfd.readouterr() == ("four\n", "")


def test_an_output_that_ends_before_an_elder_one_changes_nothing(tmp_path, capfd):
    with _OUTPUT.to(tmp_path / "first"):
        with _OUTPUT.to(tmp_path / "second"):
            pass
        os.write(1, b"one\n")
    assert (tmp_path / "first").read_text() == "one\n"
    assert (tmp_path / "second").exists() is False
    assert capfd.readouterr() == ("", "")
