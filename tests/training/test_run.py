import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from complementary import files
from complementary.config import Config, read_toml
from complementary.data import Dataset, Split
from complementary.engine.backend import choose_device
from complementary.errors import UserError
from complementary.training.run import run, start
from complementary.transitions import biased, uniform

KEPT = ("last.safetensors", "selected.safetensors", "metrics.jsonl", "config.toml")


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in KEPT}


def test_a_run_writes_what_it_promises(tmp_path, quick):
    result = run(quick, tmp_path / "x")
    assert {p.name for p in (tmp_path / "x").iterdir()} == {*KEPT, "result.json", ".lock"}
    assert result == json.loads((tmp_path / "x" / "result.json").read_text())
    for name in ("accuracy_last", "accuracy_selected", "accuracy_best_on_test", "noise_ratio"):
        assert 0 <= result[name] <= 1
    assert result["accuracy_best_on_test"] >= max(result["accuracy_last"], result["accuracy_selected"])
    assert len(result["per_class_accuracy_last"]) == 10
    assert result["images_per_second"] > 0
    assert result["versions"]["torch"] == torch.__version__
    assert "cpu" in result["device"]
    assert read_toml(tmp_path / "x" / "config.toml", Config) == quick


def test_metrics_and_result_agree(tmp_path, quick):
    result = run(quick.with_(epochs=4), tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    chosen = min(rows, key=lambda row: row["scel"])
    assert result["selected_epoch"] == chosen["epoch"]
    assert result["accuracy_selected"] == chosen["accuracy"]
    assert result["accuracy_last"] == rows[-1]["accuracy"]
    assert result["accuracy_best_on_test"] == max(row["accuracy"] for row in rows)


def test_the_selected_weights_are_those_of_the_selected_epoch(tmp_path, quick):
    config = quick.with_(epochs=5)
    result = run(config, tmp_path / "x")
    run(config.with_(epochs=result["selected_epoch"]), tmp_path / "short")
    selected, _ = files.read_checkpoint(tmp_path / "x" / "selected.safetensors")
    last, _ = files.read_checkpoint(tmp_path / "short" / "last.safetensors")
    assert all(torch.equal(selected[k], last[k]) for k in last)


def test_the_same_configuration_repeats_exactly_and_another_seed_does_not(tmp_path, quick):
    run(quick, tmp_path / "a")
    run(read_toml(tmp_path / "a" / "config.toml", Config), tmp_path / "b")
    run(quick.with_(seed=1), tmp_path / "c")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a")["metrics.jsonl"] != contents(tmp_path / "c")["metrics.jsonl"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("mix", ["icm", "micm"])
def test_random_kills_leave_no_trace(tmp_path, quick, mix, in_child):
    """kill -9 at random moments, resume, until it is finished: weights and metrics are those of a run left alone."""
    config = quick.with_(mix=mix, epochs=12, batch=128)
    started = time.monotonic()
    run(config, tmp_path / "alone")
    length = time.monotonic() - started
    moments, kills = random.Random(1126), 0
    while not (tmp_path / "killed" / "result.json").exists():
        child = in_child(lambda: run(config, tmp_path / "killed", resume=True, checkpoint_seconds=0))
        # a third of the run at most, so that several kills are needed; later ever longer, so that it ends
        time.sleep(length * (0.1 + 0.02 * kills) * moments.random() + 0.02)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert status in (0, signal.SIGKILL), "a resumed run must not fail"
        kills += status == signal.SIGKILL
    assert kills >= 3
    assert contents(tmp_path / "killed") == contents(tmp_path / "alone")


class Crash(BaseException):
    """Stands for a kill: nothing catches it."""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("count", range(1, 8))
def test_a_crash_around_any_file_operation_is_survived(tmp_path, quick, monkeypatch, moment, count):
    """A short run replaces files seven times; it dies just before or just after each of them in turn."""
    done, real = 0, Path.replace

    def replace(self, target):
        nonlocal done
        done += 1
        if done == count and moment == "before":
            raise Crash
        real(self, target)
        if done == count:
            raise Crash

    monkeypatch.setattr(Path, "replace", replace)
    quick = quick.with_(batch=1024)  # one step an epoch
    with pytest.raises(Crash):
        run(quick, tmp_path / "x", checkpoint_seconds=0)
    monkeypatch.setattr(Path, "replace", real)
    run(quick, tmp_path / "x", resume=True)
    run(quick, tmp_path / "whole")
    assert contents(tmp_path / "x") == contents(tmp_path / "whole")
    assert not list((tmp_path / "x").glob(".*.tmp"))


def test_a_killed_command_resumes_in_a_new_process(tmp_path):
    """The real thing once: ``cll train`` as a user runs it, killed with -9, resumed by ``--resume --out`` alone."""
    cll = [sys.executable, "-m", "complementary"]
    options = ["--epochs", "40", "--clusters", "20", "--restarts", "1", "--batch", "128", "--seed", "5"]
    subprocess.run([*cll, "train", *options, "--out", tmp_path / "alone"], check=True, capture_output=True)
    process = subprocess.Popen(
        [*cll, "train", *options, "--out", tmp_path / "x", "--checkpoint-seconds", "0"], stdout=subprocess.DEVNULL
    )
    metrics = tmp_path / "x" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "x" / "result.json").exists()
    subprocess.run([*cll, "train", "--resume", "--out", tmp_path / "x"], check=True, capture_output=True)
    assert contents(tmp_path / "x") == contents(tmp_path / "alone")


# --- what a folder may hold -----------------------------------------------------------------------


def halted(quick, folder):
    """A run that stopped by itself after its first step, with a checkpoint."""

    def stop(_):
        raise Crash

    with pytest.raises(Crash):
        run(quick, folder, checkpoint_seconds=0, progress=stop)
    return folder


def test_a_folder_with_a_run_is_not_overwritten(tmp_path, quick):
    folder = halted(quick, tmp_path / "x")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(UserError, match=r"already holds a run .*pass --resume"):
        run(quick, folder)
    assert before == {p.name: p.read_bytes() for p in folder.iterdir()}


def test_resume_with_another_configuration_names_the_difference(tmp_path, quick):
    folder = halted(quick, tmp_path / "x")
    with pytest.raises(UserError, match=r"another configuration \(alpha: 0.4 -> 0.9\)"):
        run(quick.with_(alpha=0.9), folder, resume=True)


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path, quick):
    folder = halted(quick, tmp_path / "x")
    other = halted(quick.with_(alpha=0.9), tmp_path / "y")
    (other / "checkpoint.safetensors").replace(folder / "checkpoint.safetensors")
    with pytest.raises(UserError, match="belongs to another configuration"):
        run(quick, folder, resume=True)


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_a_damaged_checkpoint_is_refused_and_left_alone(tmp_path, quick, damage):
    path = halted(quick, tmp_path / "x") / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    else:
        content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="Delete it to start the run again"):
        run(quick, tmp_path / "x", resume=True)
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_damaged_result_is_a_sentence_and_stays(tmp_path, quick, content):
    run(quick, tmp_path)
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(UserError, match=r"result.json is damaged .* put back a good copy, or delete it"):
        run(quick, tmp_path, resume=True)
    assert (tmp_path / "result.json").read_text() == content


def test_resuming_a_finished_run_gives_its_result_again(tmp_path, quick):
    result = run(quick, tmp_path)
    before = (tmp_path / "result.json").stat().st_mtime_ns
    assert run(quick, tmp_path, resume=True) == result
    assert (tmp_path / "result.json").stat().st_mtime_ns == before


def test_two_processes_do_not_share_a_folder(tmp_path, quick):
    def second(_):
        with pytest.raises(UserError, match="Another process is training"):
            run(quick, tmp_path, resume=True)

    run(quick, tmp_path, progress=second)


def test_a_folder_that_cannot_be_made_is_named(tmp_path, quick):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        run(quick, tmp_path / "file" / "x")


def test_an_unknown_device_is_named():
    with pytest.raises(UserError, match="'abacus' cannot be used"):
        choose_device("abacus")


# --- when training goes wrong ---------------------------------------------------------------------


def test_nan_stops_the_run_names_the_step_and_keeps_the_last_good_checkpoint(tmp_path, quick, monkeypatch):
    from complementary import losses
    from complementary.training.trainer import LOSSES

    steps = 0

    def poisoned(logits, excluded, transition=None):
        nonlocal steps
        steps += 1
        return losses.s_nl(logits, excluded) * (float("nan") if steps == 7 else 1.0)

    monkeypatch.setitem(LOSSES, "s-nl", poisoned)
    with pytest.raises(UserError, match=r"NaN or infinite at epoch 2, step 2 \(step 7 in all\).*Try a lower --lr"):
        run(quick, tmp_path, checkpoint_seconds=0)
    tensors, record = files.read_checkpoint(tmp_path / "checkpoint.safetensors")
    assert (record["epoch"], record["step"]) == (1, 1)
    assert all(torch.isfinite(t).all() for t in tensors.values() if t.is_floating_point())


def test_a_run_that_diverges_stops_with_a_sentence(quick):
    with pytest.raises(UserError, match="The loss turned NaN or infinite"):
        run(quick.with_(lr=1e30, epochs=5))


# --- data without truth, test set or hold-out -----------------------------------------------------


def blobs(truth: bool = True, test: bool = False) -> Dataset:
    random_numbers = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    x = torch.randn(300, 2, generator=random_numbers) + 6 * torch.tensor([[0.0, 0], [1, 0], [0, 1]])[y]
    excluded = torch.nn.functional.one_hot((y + 1 + (torch.arange(300) // 3) % 2) % 3, 3).to(torch.uint8)
    split = Split(x, y if truth else None, excluded)
    return Dataset("blobs", split, Split(x, y) if test else None, ("a", "b", "c"), (0.0, 0.0), (1.0, 1.0))


def test_without_truth_there_is_no_accuracy_but_an_estimate():
    result = run(Config.of(mix="icm", clusters=3, epochs=20, batch=50), dataset=blobs(truth=False))
    assert result["accuracy_last"] is None
    assert result["accuracy_selected"] is None
    assert result["noise_ratio"] is None
    assert result["estimated_accuracy_selected"] > 0.8
    assert not any(key.startswith("oracle") for key in result["data"])


def test_without_holdout_no_epoch_is_selected():
    result = run(Config.of(mix="none", epochs=2, batch=50, holdout=0.0), dataset=blobs(test=True))
    assert result["accuracy_selected"] is None
    assert result["selected_epoch"] is None
    assert result["accuracy_last"] is not None


def test_an_estimated_matrix_comes_close_to_the_true_one_without_truth():
    """Closer than knowing nothing, which is the uniform matrix."""
    config = Config.of(labels="biased:10", loss="fwd", transition="estimate", mix="none", estimate_epochs=40)
    trainer = start(config, "cpu")
    wanted = biased(10, 10)
    error = (trainer.loss_transition.double() - wanted).abs().mean()
    assert error < 0.75 * (uniform(10) - wanted).abs().mean()
    assert torch.allclose(trainer.loss_transition.sum(1), torch.ones(10))


@pytest.mark.parametrize("step", [1, 5, 7])
def test_ctrl_c_is_heard_after_the_step_and_costs_nothing(tmp_path, quick, step):
    taken = []

    def interrupt(trainer):
        taken.append(1)
        if len(taken) == step:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=rf"stopped in epoch \d of 2; --resume --out {tmp_path}/x goes on"):
        run(quick, tmp_path / "x", device="cpu", progress=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    assert len(taken) <= step + 1  # heard before the next step, or right after it
    _, record = files.read_checkpoint(tmp_path / "x" / "checkpoint.safetensors")
    assert (record["epoch"], record["step"]) == divmod(len(taken), 5)
    run(quick, tmp_path / "x", resume=True, device="cpu", progress=taken.append)
    assert len(taken) == 10, "no step is taken twice"
    run(quick, tmp_path / "whole", device="cpu")
    found, wanted = contents(tmp_path / "x"), contents(tmp_path / "whole")
    assert found["metrics.jsonl"] == wanted["metrics.jsonl"]
    assert found["last.safetensors"] == wanted["last.safetensors"]


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path, quick):
    with pytest.raises(UserError, match="fewer than one batch"):
        run(quick.with_(batch=5000), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with pytest.raises(UserError, match="fewer than one batch"):
        run(quick.with_(batch=5000), tmp_path / "old")
    assert (tmp_path / "old").exists(), "what was there before stays"
