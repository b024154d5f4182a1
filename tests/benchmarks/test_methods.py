"""All losses on features: heads trained together equal heads trained alone; the page of stored results."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from benchmarks import methods, methods_page
from benchmarks.methods import Heads, Problem, train
from complementary import labels, transitions
from complementary.errors import UserError
from complementary.losses import LOSSES
from complementary.rng import generator
from complementary.training.selection import scel_by_sharpness

ROOT = Path(__file__).parents[2]
COUNTS = {"train": 200, "validation": 40, "test": 100}


def problem(kinds=("a", "b"), seeds=2, classes=4):
    source, matrices = generator(0, "problem"), {"a": transitions.uniform(classes), "b": transitions.biased(classes, 2)}
    centers = 3 * torch.randn(classes, 6, generator=source)
    truth = {part: torch.randint(classes, (count,), generator=source) for part, count in COUNTS.items()}
    inputs = [centers[y] + torch.randn(len(y), 6, generator=source) for y in truth.values()]
    rows = tuple((kind, seed) for kind in kinds for seed in range(seeds))
    drawn = [
        torch.stack([labels.draw(truth[part], matrices[kind], seed=seed) for kind, seed in rows])
        for part in ("train", "validation")
    ]
    matrix = torch.stack([matrices[kind] for kind, _ in rows]).float()
    return Problem(rows, *inputs, truth["test"], *drawn, matrix, torch.full((len(rows), classes), 1 / classes))


@pytest.mark.parametrize("loss", ["s-nl", "ure-tga", "cpe-t", "scarce"])
def test_heads_trained_together_equal_those_trained_alone(loss):
    whole = problem()
    together = train(whole, loss, "mlp", [1e-2, 1e-1], epochs=2, batch=50, hidden=8)
    assert [(row["labels"], row["seed"], row["lr"]) for row in together] == [
        (kind, seed, lr) for lr in (1e-2, 1e-1) for kind, seed in whole.rows
    ]
    for found in (together[0], together[7]):
        i = whole.rows.index((found["labels"], found["seed"]))
        own = {name: getattr(whole, name)[i : i + 1] for name in ("rows", "excluded", "validation_excluded")}
        own |= {name: getattr(whole, name)[i : i + 1] for name in ("transition", "prior")}
        one = dataclasses.replace(whole, **own)
        (alone,) = train(one, loss, "mlp", [found["lr"]], epochs=2, batch=50, hidden=8)
        for key, value in alone.items():
            assert found[key] == (pytest.approx(value, rel=1e-4, abs=1e-6) if isinstance(value, float) else value)


@pytest.mark.parametrize("loss", sorted(LOSSES.keys() - {"ure-ga", "ure-tga", "op-w"}))
def test_every_loss_learns_an_easy_problem(loss):
    found = train(problem("b", 1), loss, "linear", [6e-2], epochs=6, batch=50)
    assert found[0]["accuracy_best_on_test"] > 0.5  # chance: 0.25


@pytest.mark.parametrize("loss", ["fwd-la", "fwd"])
def test_scel_of_logits_for_equal_classes_includes_the_prior(loss):
    prior = torch.tensor([0.6, 0.2, 0.15, 0.05])
    one = dataclasses.replace(problem("a", 1), prior=prior[None])
    heads = [Heads([0], 6, 4)]
    (found,), _ = methods._evaluate(one, heads, methods.Objective(loss, one, 1))
    logits = heads[0](one.validation)[0].detach()
    table = scel_by_sharpness(logits, one.validation_excluded[0], one.transition[0], prior.log() * (loss == "fwd-la"))
    assert found == pytest.approx(float(table.double().mean(1).min()))


def test_order_has_every_loss():
    assert sorted(methods.ORDER) == sorted(LOSSES)


def test_heads_compute_what_nn_linear_does():
    heads, x = Heads([3, 4], 5, 3, hidden=7), torch.randn(6, 5, generator=generator(0, "x"))
    for i, found in enumerate(heads(x)):
        hidden = (x @ heads.weights[0][i] + heads.biases[0][i]).relu()
        torch.testing.assert_close(found, hidden @ heads.weights[1][i] + heads.biases[1][i])
    assert not torch.equal(heads.weights[0][0], heads.weights[0][1])


def write(path, accuracies):
    """accuracies: (labels, loss, lr) -> (SCEL, accuracy of each seed)."""
    conditions = {"data": "digits", "head": "linear", "encoder": "file:x.safetensors", "features": 4, "hidden": 0}
    conditions |= {"images": {"uniform": 9}, "chosen_images": None, "epochs": 2, "batch": 3, "weight_decay": 0.0}
    lines = [conditions | {"seconds": 1.0, "device": "cpu"}]
    for (kind, loss, lr), (scel, values) in accuracies.items():
        for seed, value in enumerate(values):
            row = {"labels": kind, "loss": loss, "lr": lr, "seed": seed, "scel_selected": scel}
            lines.append(row | {"accuracy_selected": value})
    path.write_text("\n".join(map(json.dumps, lines)))


def test_page_chooses_the_learning_rate_without_true_labels(tmp_path):
    cells = {
        ("uniform", "s-nl", 0.1): (2.0, (0.5, 0.52, 0.51)),
        ("uniform", "s-nl", 0.01): (2.2, (0.8, 0.82, 0.81)),  # better, but a higher SCEL
        ("uniform", "fwd", 0.1): (2.1, (0.7, 0.71, 0.72)),
        ("uniform", "dm", 0.1): (2.1, (0.69, 0.72, 0.7)),
    }
    write(tmp_path / "digits-linear.jsonl", cells)
    (column,) = methods_page.read(tmp_path / "digits-linear.jsonl").columns
    assert (column.chosen["s-nl"].lr, column.oracle["s-nl"].lr) == (0.1, 0.01)
    assert column.ranks() == {"fwd": 1, "dm": 2, "s-nl": 3}
    assert column.best == {"fwd", "dm"}
    page = methods_page.render(tmp_path)
    assert "| `s-nl` | 51.0 ± 1.0 (81.0) |" in page
    assert "| uniform | 1 | `fwd` 1.0 (0.0, 0.0), `dm` 2.0 (0.7, 0.7), `s-nl` 3.0 (20.0, 20.0) |" in page
    assert "| digits, linear heads, uniform | `fwd` | 71.0 ± 1.0 | 1 of 2 | `dm` 70.3 ± 1.5 | 0.57 |" in page
    assert "| `fwd` | **71.0 ± 1.0** |" in page
    assert "| `s-nl` | 30.0 | 30.0 | digits, linear heads, uniform | 0 of 1 |" in page


def test_page_leaves_columns_out_of_the_ranks_if_no_loss_learns(tmp_path):
    cells = {("uniform", "s-nl", 0.1): (2.0, (0.5, 0.5)), ("uniform", "fwd", 0.1): (2.0, (0.4, 0.4))}
    chance = {("ACL", "s-nl", 0.1): (2.0, (0.1, 0.12)), ("ACL", "fwd", 0.1): (2.0, (0.2, 0.19))}
    write(tmp_path / "digits-linear.jsonl", cells | chance)
    page = methods_page.render(tmp_path)
    assert "Over 1 columns" in page
    assert "twice chance: digits, linear heads, ACL" in page
    assert "| `s-nl` | SCL-NL | 1.0 | 1 | 1 of 1 |" in page


def test_page_shows_the_stored_results():
    page = methods_page.render(ROOT / "results/methods")
    assert (ROOT / "docs/notes/methods.md").read_text() == page, (
        "run: python -m benchmarks.methods page results/methods"
    )


def test_page_without_results_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no results"):
        methods_page.render(tmp_path)


def test_command_line_trains_and_writes_results(tmp_path, monkeypatch):
    def built(name, kinds, encoder, seeds, images, device):
        if "ACL" in kinds:
            raise UserError("not available")
        return dataclasses.replace(problem("a", seeds), rows=tuple((kinds[0], seed) for seed in range(seeds)))

    monkeypatch.setattr(methods, "build_problem", built)
    options = ["--data", "digits", "--encoder", "file:x", "--out", str(tmp_path), "--heads", "linear", "--lrs", "0.1"]
    options += [
        "--losses",
        "s-nl",
        "fwd",
        "--labels",
        "uniform",
        "ACL",
        "--seeds",
        "2",
        "--epochs",
        "1",
        "--batch",
        "50",
    ]
    methods.main(["run", *options, "--device", "cpu"])
    conditions, *rows = map(json.loads, (tmp_path / "digits-linear.jsonl").read_text().splitlines())
    assert conditions["images"] == {"uniform": 200}
    assert [(row["labels"], row["loss"], row["seed"]) for row in rows] == [
        ("uniform", loss, seed) for loss in ("s-nl", "fwd") for seed in (0, 1)
    ]
    again = [*options, "--device", "cpu"]
    again[again.index("fwd")] = "dm"
    methods.main(["run", *again])  # the same conditions: fwd is kept, s-nl replaced
    kept = [json.loads(line) for line in (tmp_path / "digits-linear.jsonl").read_text().splitlines()[1:]]
    assert [row["loss"] for row in kept] == ["fwd", "fwd", "s-nl", "s-nl", "dm", "dm"]
    methods.main(["run", *again, "--batch", "40"])  # other conditions
    assert len((tmp_path / "digits-linear.jsonl").read_text().splitlines()) == 5
    methods.main(["page", str(tmp_path), "--out", str(tmp_path / "page.md")])
    assert "## Ranks" in (tmp_path / "page.md").read_text()
