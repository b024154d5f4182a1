import time

from complementary import locks


def test_a_lock_is_held_by_one_and_free_afterwards(tmp_path):
    path = tmp_path / "lock"
    assert not locks.is_held(path)
    with locks.hold(path, 0) as first:
        assert first
        assert locks.is_held(path)
        with locks.hold(path, 0) as second:
            assert not second
    assert not locks.is_held(path)


def test_patience_is_rewarded(tmp_path, in_child):
    path = tmp_path / "lock"

    def hold_a_while():
        with locks.hold(path, 0):
            (tmp_path / "held").write_text("")
            time.sleep(0.3)

    in_child(hold_a_while)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with locks.hold(path, 0) as at_once:
        assert not at_once
    with locks.hold(path, 10) as later:
        assert later
