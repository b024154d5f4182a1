import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from complementary import files, labels, scores
from complementary.config import Config, read_toml
from complementary.data import Dataset, Split
from complementary.errors import UserError
from complementary.rng import generator
from complementary.training.run import build_trainer, may_be_chance, run
from complementary.transitions import biased, uniform
from tests.helpers import RUN_FILES, run_files
from tests.processes import kill_until_finished, run_cll, start_cll


def test_run_writes_all_files(tmp_path, quick):
    result = run(quick, tmp_path / "x")
    assert {p.name for p in (tmp_path / "x").iterdir()} == {*RUN_FILES, "result.json", ".lock"}
    assert result == json.loads((tmp_path / "x" / "result.json").read_text())
    for name in ("accuracy_last", "accuracy_selected", "accuracy_best_on_test", "oracle_noise_ratio"):
        assert 0 <= result[name] <= 1
    assert result["accuracy_best_on_test"] >= max(result["accuracy_last"], result["accuracy_selected"])
    assert len(result["per_class_accuracy_last"]) == 10
    assert result["images_per_second"] > 0
    assert result["versions"]["torch"] == torch.__version__
    assert "cpu" in result["device"]
    assert read_toml(tmp_path / "x" / "config.toml", Config) == quick


def test_result_agrees_with_metrics(tmp_path, quick):
    result = run(quick.with_(epochs=4), tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    chosen = rows[rows[-1]["selected"] - 1]
    assert chosen["scel_calibrated"] == min(row["scel_calibrated"] for row in rows) or chosen is rows[-1]
    assert result["selected_epoch"] == chosen["epoch"]
    assert result["accuracy_selected"] == chosen["accuracy"]
    assert result["accuracy_last"] == rows[-1]["accuracy"]
    assert result["accuracy_best_on_test"] == max(row["accuracy"] for row in rows)


@pytest.mark.parametrize("loss", ["s-nl", "dm"])
def test_selected_weights_are_those_of_the_selected_epoch(tmp_path, quick, loss):
    """The last epoch for s-nl, an earlier one for dm, which overfits."""
    config = quick.with_(epochs=5) if loss == "s-nl" else quick.with_(epochs=25, loss="dm", lr=0.01, holdout=0.5)
    result = run(config, tmp_path / "x")
    assert (result["selected_epoch"] == config.training.epochs) == (loss == "s-nl")
    run(config.with_(epochs=result["selected_epoch"]), tmp_path / "short")
    selected, _ = files.read_checkpoint(tmp_path / "x" / "selected.safetensors")
    last, _ = files.read_checkpoint(tmp_path / "short" / "last.safetensors")
    assert all(torch.equal(selected[k], last[k]) for k in last)


def test_run_is_reproducible(tmp_path, quick):
    run(quick, tmp_path / "a")
    run(read_toml(tmp_path / "a" / "config.toml", Config), tmp_path / "b")
    run(quick.with_(seed=1), tmp_path / "c")
    assert run_files(tmp_path / "a") == run_files(tmp_path / "b")
    assert run_files(tmp_path / "a")["metrics.jsonl"] != run_files(tmp_path / "c")["metrics.jsonl"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("mix", ["icm", "micm"])
def test_resume_after_random_kills_is_bitwise_equal(tmp_path, quick, mix, in_child):
    """kill -9 at random times and resume until the run is finished; compare with an uninterrupted run."""
    config = quick.with_(mix=mix, epochs=12, batch=128)
    started = time.monotonic()
    run(config, tmp_path / "alone")
    length = time.monotonic() - started
    kills = kill_until_finished(
        lambda: in_child(lambda: run(config, tmp_path / "killed", resume=True, checkpoint_seconds=0)),
        tmp_path / "killed",
        # at most a third of the run, so that several kills are needed; longer each time, so that it ends
        lambda kills: length * (0.1 + 0.02 * kills),
    )
    assert kills >= 3
    assert run_files(tmp_path / "killed") == run_files(tmp_path / "alone")


class Crash(BaseException):
    """Simulates a kill: nothing catches it."""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("count", range(1, 8))
def test_resume_after_a_crash_around_any_file_operation(tmp_path, quick, monkeypatch, moment, count):
    """A short run replaces files seven times; it crashes just before or just after each of them."""
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
    quick = quick.with_(batch=1024)  # one step per epoch
    with pytest.raises(Crash):
        run(quick, tmp_path / "x", checkpoint_seconds=0)
    monkeypatch.setattr(Path, "replace", real)
    run(quick, tmp_path / "x", resume=True)
    run(quick, tmp_path / "whole")
    assert run_files(tmp_path / "x") == run_files(tmp_path / "whole")
    assert not list((tmp_path / "x").glob(".*.tmp"))


@pytest.mark.slow
def test_resume_of_a_killed_command_is_bitwise_equal(tmp_path):
    """``cll train`` in a process that is killed with -9, resumed with ``--resume --out`` alone."""
    options = ["--epochs", "40", "--clusters", "20", "--restarts", "1", "--batch", "128", "--seed", "5"]
    assert run_cll("train", *options, "--out", tmp_path / "alone").returncode == 0
    process = start_cll(
        "train", *options, "--out", tmp_path / "x", "--checkpoint-seconds", "0", stdout=subprocess.DEVNULL
    )
    metrics = tmp_path / "x" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "x" / "result.json").exists()
    assert run_cll("train", "--resume", "--out", tmp_path / "x").returncode == 0
    assert run_files(tmp_path / "x") == run_files(tmp_path / "alone")


# --- run folders ----------------------------------------------------------------------------------


def halted(quick, folder):
    """A run that was stopped after its first step, with a checkpoint."""

    def stop(_):
        raise Crash

    with pytest.raises(Crash):
        run(quick, folder, checkpoint_seconds=0, progress=stop)
    return folder


def test_run_refuses_to_overwrite_a_run(tmp_path, quick):
    folder = halted(quick, tmp_path / "x")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(UserError, match="already contains a run") as caught:
        run(quick, folder)
    assert caught.value.option == "resume"
    assert before == {p.name: p.read_bytes() for p in folder.iterdir()}


def test_resume_with_another_configuration_is_refused(tmp_path, quick):
    folder = halted(quick, tmp_path / "x")
    with pytest.raises(UserError, match=r"alpha: 0.4 -> 0.9"):
        run(quick.with_(alpha=0.9), folder, resume=True)


def test_resume_with_a_checkpoint_of_another_configuration_is_refused(tmp_path, quick):
    folder = halted(quick, tmp_path / "x")
    other = halted(quick.with_(alpha=0.9), tmp_path / "y")
    (other / "checkpoint.safetensors").replace(folder / "checkpoint.safetensors")
    with pytest.raises(UserError, match="another configuration"):
        run(quick, folder, resume=True)


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_resume_with_a_damaged_checkpoint_is_refused(tmp_path, quick, damage):
    path = halted(quick, tmp_path / "x") / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    else:
        content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"checkpoint\.safetensors"):
        run(quick, tmp_path / "x", resume=True)
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_resume_with_a_damaged_result_is_refused(tmp_path, quick, content):
    run(quick, tmp_path)
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(UserError, match="damaged"):
        run(quick, tmp_path, resume=True)
    assert (tmp_path / "result.json").read_text() == content


def test_resume_of_a_finished_run_returns_its_result(tmp_path, quick):
    result = run(quick, tmp_path)
    before = (tmp_path / "result.json").stat().st_mtime_ns
    assert run(quick, tmp_path, resume=True) == result
    assert (tmp_path / "result.json").stat().st_mtime_ns == before


def test_run_folder_is_locked(tmp_path, quick):
    def second(_):
        with pytest.raises(UserError, match="Another process"):
            run(quick, tmp_path, resume=True)

    run(quick, tmp_path, progress=second)


def test_run_folder_that_cannot_be_created_is_named(tmp_path, quick):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be created") as caught:
        run(quick, tmp_path / "file" / "x")
    assert caught.value.option == "out"


# --- divergence -----------------------------------------------------------------------------------


def test_nan_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path, quick, monkeypatch):
    from complementary import losses
    from complementary.losses import LOSSES

    steps = 0

    def poisoned(logits, excluded, transition=None):
        nonlocal steps
        steps += 1
        return losses.s_nl(logits, excluded) * (float("nan") if steps == 7 else 1.0)

    monkeypatch.setitem(LOSSES, "s-nl", poisoned)
    with pytest.raises(UserError, match=r"epoch 2, step 2 \(step 7 in total\)") as caught:
        run(quick, tmp_path, checkpoint_seconds=0)
    assert caught.value.option == "lr"
    tensors, record = files.read_checkpoint(tmp_path / "checkpoint.safetensors")
    assert (record["epoch"], record["step"]) == (1, 1)
    assert all(torch.isfinite(t).all() for t in tensors.values() if t.is_floating_point())


def test_divergence_stops_the_run(quick):
    with pytest.raises(UserError, match="NaN or infinite"):
        run(quick.with_(lr=1e30, epochs=5))


# --- datasets without true labels, test set or validation split -----------------------------------


def blobs(truth: bool = True, test: bool = False) -> Dataset:
    random_numbers = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    x = torch.randn(300, 2, generator=random_numbers) + 6 * torch.tensor([[0.0, 0], [1, 0], [0, 1]])[y]
    excluded = torch.nn.functional.one_hot((y + 1 + (torch.arange(300) // 3) % 2) % 3, 3).to(torch.uint8)
    split = Split(x, y if truth else None, excluded)
    return Dataset("blobs", split, Split(x, y) if test else None, ("a", "b", "c"), (0.0, 0.0), (1.0, 1.0))


def test_run_without_true_labels_estimates_the_accuracy():
    result = run(Config.of(mix="icm", clusters=3, epochs=20, batch=50), dataset=blobs(truth=False))
    assert result["accuracy_last"] is None
    assert result["accuracy_selected"] is None
    assert result["oracle_noise_ratio"] is None
    assert result["estimated_accuracy_selected"] > 0.8
    assert not any(key.startswith("oracle") for key in result["data"])


def test_run_without_validation_split_selects_no_epoch():
    result = run(Config.of(mix="none", epochs=2, batch=50, holdout=0.0), dataset=blobs(test=True))
    assert result["accuracy_selected"] is None
    assert result["selected_epoch"] is None
    assert result["accuracy_last"] is not None


def test_estimated_transition_is_close_to_the_true_one():
    """Closer than the uniform matrix."""
    labels = {"labels": "biased:10", "loss": "fwd", "transition": "estimate", "mix": "none"}
    config = Config.of(**labels, lr=5e-3, estimate_epochs=10)
    trainer = build_trainer(config, "cpu")
    wanted = biased(10, 10)
    error = (trainer.loss_transition.double() - wanted).abs().mean()
    assert error < 0.5 * (uniform(10) - wanted).abs().mean()
    assert torch.allclose(trainer.loss_transition.sum(1), torch.ones(10))


@pytest.mark.parametrize("step", [1, 5, 7])
def test_interrupt_takes_effect_after_the_step(tmp_path, quick, step):
    taken = []

    def interrupt(trainer):
        taken.append(1)
        if len(taken) == step:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=rf"stopped in epoch \d of 2; .*{tmp_path}/x"):
        run(quick, tmp_path / "x", device="cpu", progress=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    _, record = files.read_checkpoint(tmp_path / "x" / "checkpoint.safetensors")
    steps = 5 * record["epoch"] + record["step"]
    assert len(taken) <= steps <= step + 1, "the checkpoint is written after the next step at the latest"
    resumed = []
    run(quick, tmp_path / "x", resume=True, device="cpu", progress=resumed.append)
    assert steps + len(resumed) == 10, "no step is taken twice"
    run(quick, tmp_path / "whole", device="cpu")
    found, wanted = run_files(tmp_path / "x"), run_files(tmp_path / "whole")
    assert found["metrics.jsonl"] == wanted["metrics.jsonl"]
    assert found["last.safetensors"] == wanted["last.safetensors"]


def test_run_that_fails_before_training_leaves_no_folder(tmp_path, quick):
    with pytest.raises(UserError, match="fewer than one batch"):
        run(quick.with_(batch=5000), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with pytest.raises(UserError, match="fewer than one batch"):
        run(quick.with_(batch=5000), tmp_path / "old")
    assert (tmp_path / "old").exists(), "an existing folder stays"


def test_folder_of_a_run_that_was_refused_after_its_first_training_can_be_used_again(tmp_path):
    config = Config.of(inputs="features", encoder="random", mix="none", epochs=1, head=36, batch=32, self_training=1)
    with pytest.raises(UserError, match="use linear or auto"):
        run(config.with_(model="mlp"), tmp_path / "x", device="cpu")
    assert not (tmp_path / "x").exists()
    assert run(config, tmp_path / "x", device="cpu")["accuracy_last"] > 0


# --- has anything been learned? -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "count", "accuracy", "low", "high"),
    [(10, 144, 0.3, 0, 0.06), (10, 5000, 0.1, 0.6, 1), (10, 5000, 0.3, 0, 0.02), (4, 60, 0.6, 0, 0.05)],
)
def test_a_weak_classifier_is_rarely_taken_for_chance(classes, count, accuracy, low, high):
    random, warned = generator(0, "chance"), 0
    for _ in range(300):
        truth = torch.randint(classes, (count,), generator=random)
        excluded = labels.draw(truth, uniform(classes), seed=int(torch.randint(10**6, (), generator=random)))
        wrong = (truth + torch.randint(1, classes, (count,), generator=random)) % classes
        predicted = torch.where(torch.rand(count, generator=random) < accuracy, truth, wrong)
        warned += may_be_chance(scores.contradictions(predicted, excluded))
    assert low <= warned / 300 <= high
