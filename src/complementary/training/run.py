"""A whole run: from a configuration to metrics, weights and a result. It can be resumed at any time.

| file | content |
|---|---|
| config.toml | the configuration, from which the run can be repeated |
| metrics.jsonl | one line per epoch; the same bytes however often the run was interrupted |
| checkpoint.safetensors | while it runs: everything needed to continue |
| last.safetensors, selected.safetensors | weights after the last epoch, and after the selected one |
| encoder.safetensors | the encoder, if the inputs of the network were its features |
| result.json | written last: accuracies, oracle noise ratio, speed, versions |
"""

import copy
import dataclasses
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from complementary import data, files, networks, priors, scores, transitions
from complementary.config import CLOSED_FORM, Config, TrainingConfig
from complementary.data import Dataset
from complementary.data.rows import Rows
from complementary.engine.backend import Engine, device_name, versions
from complementary.engine.distributed import SINGLE_PROCESS, ProcessGroup
from complementary.engine.loop import Progress
from complementary.engine.run_folder import RunFolder
from complementary.errors import UserError
from complementary.rng import generator
from complementary.training.discriminant import DiscriminantTrainer, fit_layer
from complementary.training.estimates import cross_fitted_predictions, estimates
from complementary.training.evidence import evidence_of_neighbors
from complementary.training.fine_tuning import fine_tuned_network
from complementary.training.folds import predict_out_of_fold
from complementary.training.plnl import PlnlTrainer
from complementary.training.pocr import PocrTrainer
from complementary.training.recipes import resolve
from complementary.training.restarts import best_start, has_local_minima
from complementary.training.self_training import SelfTrainer
from complementary.training.task import Task, build_task, class_prior
from complementary.training.trainer import Trainer
from complementary.transitions import TransitionEstimate

log = logging.getLogger(__name__)
ESTIMATE_ROUNDS = 2  # trainings with fwd after the first one with s-nl, when the transition matrix is estimated
SAME_INPUTS = ("same", "mlp")  # students that see what the first classifier saw; others need images
LISTED = 10  # classes in a message
CONFIRMED = 1.0  # standard deviations by which a classifier must be better than chance, else there is a warning
WEAK = 0.3  # accuracy at which a classifier should not be taken for one that has learned nothing
ESTIMATE_WEIGHT_DECAY = 0.01  # of these trainings, if the inputs are features (docs/notes/estimates.md)

BASELINES: dict[str, type[PocrTrainer]] = {"pocr": PocrTrainer, "plnl": PlnlTrainer}
"""Recipes that have a training loop of their own."""


def run(
    config: Config,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    device: str | Engine = "auto",
    checkpoint_seconds: float = 30.0,
    progress: Progress | None = None,
    dataset: Dataset | None = None,
    processes: ProcessGroup = SINGLE_PROCESS,
) -> dict[str, Any]:
    """Train a classifier.

    Args:
        config: The configuration.
        out: Folder of the run; None: nothing is written.
        resume: Continue the run in the folder; a finished run is not repeated.
        device: The device, or the engine that computes.
        checkpoint_seconds: Time between checkpoints.
        progress: Called after every step of every training (see `build_trainer`).
        dataset: The dataset; None: the one that the configuration names.
        processes: The processes that share the work.

    Returns:
        The result, which is also written to result.json; empty in all processes except rank 0.
    """
    engine = Engine.of(device)
    if config.training.recipe != "custom":
        dataset = dataset or data.load(config.dataset.data)
        config = resolve(config, dataset, engine.device)
    if out is None:
        trainer = build_trainer(config, engine, dataset, processes, progress)
        trainer.run(progress)
        check_learned(trainer)
        return summarize(trainer)
    with RunFolder(Path(out), config, resume=resume, processes=processes) as folder:
        if folder.finished:
            return folder.result()
        trainer = build_trainer(config, engine, dataset, processes, progress)
        folder.train(trainer, progress, checkpoint_seconds)
        if not processes.is_main:
            return {}
        check_learned(trainer)
        _write_weights(trainer, folder.path)
        return folder.finish(summarize(trainer))


def build_trainer(
    config: Config,
    device: str | Engine = "auto",
    dataset: Dataset | None = None,
    processes: ProcessGroup = SINGLE_PROCESS,
    progress: Progress | None = None,
    task: Task | None = None,
) -> Trainer:
    """Build the training loop of a configuration.

    Other trainings come first if the configuration needs them: for an estimate of the transition matrix, for the choice
    of initial weights, and of a classifier that self-training starts from. A resumed run repeats them.

    Args:
        config: The configuration.
        device: The device, or the engine that computes.
        dataset: The dataset; None: the one that the configuration names.
        processes: The processes that share the work.
        progress: Called after every step of the trainings that come first.
        task: The task; None: that of the configuration.
    """
    engine, dataset = Engine.of(device), dataset or data.load(config.dataset.data)
    task = task or build_task(config, dataset, engine)
    started = time.perf_counter()
    trainer = _build(config, task, dataset, engine, processes, progress)
    trainer.seconds_before = time.perf_counter() - started
    return trainer


def _build(
    config: Config, task: Task, dataset: Dataset, engine: Engine, processes: ProcessGroup, progress: Progress | None
) -> Trainer:
    """Run the trainings that come first, and build the last one."""
    if config.training.transition == "estimate":
        task = _estimate_transition(config, task, engine, processes, progress)
    if config.training.recipe in BASELINES:
        return _start_baseline(config, task, dataset, engine, processes, progress)
    if not config.pseudo_labels.self_training:
        if config.pseudo_labels.student != "same":
            raise UserError("A student learns by self-training, but self_training is 0; set its epochs.", "student")
        return _classifier(config, task, engine, processes, progress)
    return _start_self_training(config, task, dataset, engine, processes, progress)


def _start_self_training(
    config: Config, task: Task, dataset: Dataset, engine: Engine, processes: ProcessGroup, progress: Progress | None
) -> SelfTrainer:
    """Train the classifier that self-training starts from, and estimate the class prior from it."""
    examples, classes, student = len(task.excluded), len(task.classes), config.pseudo_labels.student
    if student not in SAME_INPUTS and dataset.train.inputs.ndim == 2:
        raise UserError(f"The student {student} needs images, but the inputs are vectors; use mlp.", "student")
    if examples < classes:
        raise UserError(
            f"There are {examples} training examples for {classes} classes; self-training needs at least one of each. "
            "Add examples, or set self_training to 0.",
            "self_training",
        )
    first = _train_first(config, task, engine, processes, "first classifier, ", progress)
    before = accuracies(first.history)
    _check_start(first)
    probabilities, network, encoder = processes.broadcast(_predict(first, task)), first.model, task.encoder
    evidence = evidence_of_neighbors(first) if config.pseudo_labels.neighbors else None
    prior = class_prior(config, task.excluded, task.transition, probabilities)
    _log_prior(prior, task)
    learns_start = student != "same"
    if student != "same":
        if encoder is not None:  # the layer on its features is self-trained first
            layer = SelfTrainer(config.with_(student="same"), task, network, engine, processes)
            layer.begin(probabilities, prior, before, evidence)
            layer.stage = "self-training on features, "
            layer.run(progress)
            if layer.selected:  # held-out labels contradict the last epoch
                layer.teacher.load_state_dict(layer.selected)
            probabilities = processes.broadcast(_predict(layer, task))
            task = task if student in SAME_INPUTS else task.with_images(dataset)
        network = networks.build(student, task.shape, classes, config.seed, config.network.max_pool)
    elif encoder is not None and encoder.backbone.kind in networks.MODELS:  # others stay frozen
        features, task = task, task.with_images(dataset)
        learns_start = isinstance(first, DiscriminantTrainer) and first.layer is not None
        last = _layer_to_fine_tune(first, features)
        network = fine_tuned_network(encoder, last, features, task, engine.device)
    trainer = SelfTrainer(config, task, network, engine, processes, encoder, learns_start)
    trainer.begin(probabilities, prior, before, evidence)
    return trainer


def _layer_to_fine_tune(first: Trainer, task: Task) -> networks.Network:
    """The last layer of a fine-tuned network: the first classifier, if it was trained by gradients.

    A discriminant has large weights where features hardly differ. They amplify what strong augmentation and every step
    change in the features, so fine-tuning diverges (docs/notes/long-tails.md, From a discriminant). In its place comes
    the layer that it started from or, after ``fit = neighbors``, a layer with small weights that predicts the same.

    Args:
        first: The training of the first classifier.
        task: The task of all processes, with features as inputs.
    """
    if not isinstance(first, DiscriminantTrainer):
        return first.evaluated
    if first.layer is not None:
        return first.layer.evaluated
    layer, probabilities = copy.deepcopy(first.evaluated), _predict(first, task).to(first.device)
    found = fit_layer(first.features(_all_inputs(first, task)), probabilities)
    weight, bias = map(first.processes.broadcast, found)
    layer.fc.load_state_dict({"weight": weight, "bias": bias})
    return layer


def check_learned(trainer: Trainer) -> None:
    """Warn if held-out labels do not show that the predictions of a finished training are better than chance.

    Each half of the validation split is predicted by the epoch that the other half selects.
    """
    excluded = trainer.task.validation_excluded.cpu()
    if not len(trainer.task.validation) or _selected(trainer.history) is None:
        return
    predicted = cross_fitted_predictions(trainer, _selected)
    found = scores.contradictions(predicted, excluded)
    if may_be_chance(found) or len(predicted.unique()) == 1 < len(predicted):
        log.warning(
            "The classifier may be no better than chance: %d of %d held-out predictions name an excluded class, about "
            "%.0f would by chance. Try a lower learning rate (lr), more epochs, labels or examples, or another "
            "encoder; check that the labels say what the examples are not.",
            found.found,
            len(excluded),
            found.expected,
        )


def may_be_chance(found: scores.Contradictions) -> bool:
    """Whether predictions with these contradictions may be no better than chance, and are not much better.

    The fewer labels there are, the less they can show. A classifier with an accuracy of `WEAK`, whose z is about `WEAK`
    times the square root of the contradictions that are expected by chance, should rarely be taken for chance.
    """
    return found.z < min(CONFIRMED, WEAK * math.sqrt(found.expected) - 2)


def _check_start(first: Trainer) -> None:
    """Warn if held-out labels do not show that the first classifier of self-training is better than chance."""
    task = first.task
    if not len(task.validation):
        return
    used = _selected(first.history) or first.history[-1]
    predicted = first.validation_predictions[used["epoch"] - 1].long()
    found = scores.contradictions(predicted, task.validation_excluded.cpu())
    if may_be_chance(found):
        log.warning(
            "Self-training starts from a classifier that may be no better than chance: %d of %d held-out predictions "
            "name an excluded class, about %.0f would by chance. If so, self-training will not help; use more labels, "
            "more examples or a better encoder.",
            found.found,
            len(predicted),
            found.expected,
        )


def _start_baseline(
    config: Config, task: Task, dataset: Dataset, engine: Engine, processes: ProcessGroup, progress: Progress | None
) -> PocrTrainer:
    """A published baseline: from scratch or, if the inputs are features, from the encoder and a linear layer on it."""
    recipe, encoder = config.training.recipe, task.encoder
    if config.pseudo_labels.self_training:
        raise UserError(f"The recipe {recipe} does not include self-training; leave it out.", "self_training")
    if encoder is not None and encoder.backbone.kind not in networks.MODELS:
        raise UserError(
            f"The recipe {recipe} fine-tunes the encoder, but {config.cluster.encoder} is an encoder that stays "
            "frozen; use a pretrained cnn or resnet18, or leave inputs at raw.",
            "encoder",
        )
    if encoder is None and config.training.fit in CLOSED_FORM:
        raise UserError(f"The recipe {recipe} trains a network by gradients; leave fit out.", "fit")
    if encoder is None:
        return BASELINES[recipe](config, task, engine, processes)
    options: dict[str, Any] = {"recipe": "features", "batch": config.training.batch, "policy": "none"}
    fit, neighbors = config.training.fit, config.pseudo_labels.neighbors
    options["fit"] = "gradient" if fit == "discriminant" else fit  # the layer before a discriminant is fine-tuned
    options |= {"neighbors": neighbors} if neighbors else {}
    on_features = _for_adam(config)
    on_features = on_features.with_(**(on_features.preset(options) | options))
    first = _train_first(on_features, task, engine, processes, "first classifier, ", progress)
    images = task.with_images(dataset)
    layer = _layer_to_fine_tune(first, task)
    network = fine_tuned_network(encoder, layer, task, images, engine.device)
    return BASELINES[recipe](config, images, engine, processes, network, encoder)


def _for_adam(config: Config) -> Config:
    """The configuration with the usual learning rate of Adam, if its own is that of a baseline, for SGD."""
    usual = TrainingConfig()
    own = config.training.recipe not in BASELINES
    return config if own else config.with_(lr=usual.lr, weight_decay=usual.weight_decay, optimizer="adam", ema=0.0)


def _log_prior(prior: priors.Prior, task: Task) -> None:
    """Log the class prior, and warn about classes whose share the labels do not show."""
    if torch.allclose(prior.share, priors.uniform(len(task.classes)).share):
        log.info("class prior: equal shares")
        return
    shares = [f"{name} {share:.3f}" for name, share in zip(task.classes, prior.share.tolist(), strict=True)]
    log.info("class prior: %s", _listed(shares))
    noise = priors.from_labels(task.excluded, task.transition).error
    hidden = [task.classes[k] for k in (prior.share < 2 * noise).nonzero()[:, 0].tolist()]
    if hidden:
        log.warning(
            "The labels alone do not show the share of %d of %d classes (it is below two standard errors of the "
            "counts): %s. If they are rare, they may be lost. More examples or labels help.",
            len(hidden),
            len(task.classes),
            _listed(hidden),
        )


def _listed(items: Sequence[object]) -> str:
    return ", ".join(map(str, items[:LISTED])) + (" ..." if len(items) > LISTED else "")


def _estimate_transition(
    config: Config, task: Task, engine: Engine, processes: ProcessGroup, progress: Progress | None
) -> Task:
    """Estimate the transition matrix without true labels, and use it in place of the matrices of the task.

    Class probabilities are cross-fitted: every example is predicted by a classifier that was trained without it. The
    first classifiers are trained with s-nl, which takes the labels for uniform; further ones with fwd and the estimate
    so far. The estimate under which the labels are most likely is used.
    """
    options: dict[str, Any] = {
        "fit": "gradient",
        "mix": "none",
        "transition": "auto",
        "epochs": config.training.estimate_epochs,
    }
    if config.training.fit in CLOSED_FORM:  # a linear model was for the discriminant
        options["model"] = "auto"
    plain = _for_adam(config).with_(**options)
    if task.encoder is not None:
        plain = plain.with_(weight_decay=max(ESTIMATE_WEIGHT_DECAY, config.training.weight_decay))
    found: list[TransitionEstimate] = []
    for turn in range(1 + ESTIMATE_ROUNDS):
        stage = f"for the matrix ({turn + 1} of {1 + ESTIMATE_ROUNDS}), "
        first = plain.with_(loss="fwd" if turn else "s-nl")
        predicted = _cross_fit(first, task, engine, processes, stage, progress)
        found.append(transitions.estimate_transition(predicted, task.excluded))
        task = _with_estimate(task, found[-1])
    estimate = max(found, key=lambda e: e.likelihood)
    summary = {"transition": estimate.matrix.tolist(), "transition_error": estimate.error.tolist()}
    return dataclasses.replace(_with_estimate(task, estimate), data_summary=task.data_summary | summary)


def _with_estimate(task: Task, estimate: TransitionEstimate) -> Task:
    matrices: dict[str, Any] = {"transition": estimate.matrix, "loss_transition": estimate.matrix}
    return dataclasses.replace(task, **matrices, transition_estimate=estimate)


def _cross_fit(
    config: Config, task: Task, engine: Engine, processes: ProcessGroup, stage: str, progress: Progress | None
) -> Tensor:
    """Class probabilities [N, K] of every training example, by a classifier that was trained without its labels."""
    folds = 5 if task.encoder is not None or len(task.train) < 10_000 else 2
    if len(task.train) < 2 * folds:
        raise UserError(
            f"There are {len(task.train)} training examples; estimating a transition matrix needs at least "
            f"{2 * folds}. Give a matrix or leave transition at auto.",
            "transition",
        )

    def train(fold: int, without: Task) -> Trainer:
        batch = min(config.training.batch, len(without.train) // processes.world_size * processes.world_size)
        return _train_first(config.with_(batch=batch), without, engine, processes, stage, progress)

    random = generator(config.seed, "folds")
    return predict_out_of_fold(task, folds, random, train, processes=processes)


def _classifier(
    config: Config, task: Task, engine: Engine, processes: ProcessGroup, progress: Progress | None
) -> Trainer:
    """The training of a classifier, as the option ``fit`` says."""
    if config.training.fit == "gradient":
        layer = Trainer(config, task, engine, processes)
        if has_local_minima(config, layer):
            layer.load_weights(best_start(config, task, engine, processes, progress))
        return layer
    trainer = DiscriminantTrainer(config, task, engine, processes)  # first, because it checks the options
    if config.training.fit == "discriminant":
        first = config.with_(fit="gradient", model="linear")
        layer = _train_first(first, task, engine, processes, "linear layer, ", progress)
        trainer.begin(processes.broadcast(_predict(layer, task)), layer)
    return trainer


def _train_first(
    config: Config, task: Task, engine: Engine, processes: ProcessGroup, stage: str, progress: Progress | None
) -> Trainer:
    """Train a classifier for a later training.

    Its networks have the weights of the selected epoch in all processes, and predict examples like those of the
    training.
    """
    trainer = _classifier(config, task, engine, processes, progress)
    trainer.stage = stage
    trainer.run(progress)
    weights = trainer.selected or trainer.evaluated.state_dict()
    log_prior = processes.broadcast(torch.as_tensor(trainer.selected_log_prior))
    trainer.load_weights({name: processes.broadcast(value) for name, value in weights.items()})  # rank 0 selects
    with torch.no_grad():
        for network in {trainer.model, trainer.evaluated}:  # one of them, unless an average is evaluated
            network.fc.bias.add_(log_prior)
    trainer.log_prior = 0.0
    return trainer


def _predict(trainer: Trainer, task: Task) -> Tensor:
    """Class probabilities [N, K] of the training examples of all processes, on the CPU."""
    return (trainer.logits(_all_inputs(trainer, task)) + trainer.log_prior).softmax(1).cpu()


def _all_inputs(trainer: Trainer, task: Task) -> Tensor | Rows:
    """The inputs of all processes: those of the trainer, which may be on the device, if it is the only one."""
    return trainer.task.train if trainer.processes.world_size == 1 else task.train


def _write_weights(trainer: Trainer, folder: Path) -> None:
    """Write the weights of the last and of the selected epoch, and the encoder if there is one."""
    task = trainer.task
    record = {
        "config": trainer.config.hash(),
        "classes": task.classes,
        "model": trainer.model.kind,
        "max_pool": trainer.model.max_pool,
        "shape": list(task.shape),
        "mean": task.mean.tolist(),
        "std": task.std.tolist(),
        "features": task.encoder is not None,
        "feature_names": task.data_summary.get("feature_names"),
    }
    last = record | _decoder(trainer.criterion.decoder())
    files.write_checkpoint(folder / "last.safetensors", trainer.evaluated.state_dict(), last)
    if trainer.selected:
        selected = record | _decoder(trainer.selected_decoder)
        files.write_checkpoint(folder / "selected.safetensors", trainer.selected, selected)
    if task.encoder is not None:
        task.encoder.write(folder / "encoder.safetensors")


def _decoder(decoder: tuple[Tensor, Tensor] | None) -> dict[str, Any]:
    """What a file of weights says about decoding; nothing if the largest output is the class."""
    return {} if decoder is None else {"decoder": [part.tolist() for part in decoder]}


# --- the result ---------------------------------------------------------------------------------------------------


def summarize(trainer: Trainer) -> dict[str, Any]:
    """The result of a finished training, as in result.json. Shares are fractions; None: not available."""
    history, summary = trainer.history, dict(trainer.task.data_summary)
    images = len(history) * trainer.steps_per_epoch * trainer.batch
    last, selected = history[-1], _selected(history)
    known = "accuracy" in last
    return {
        **accuracies(history),
        **estimates(trainer, _selected),
        **(_self_training(trainer) if isinstance(trainer, SelfTrainer) else {}),
        **({f"{k}_last": v for k, v in _by_class(last, summary).items()} if known else {}),
        **({f"{k}_selected": v for k, v in _by_class(selected, summary).items()} if known and selected else {}),
        "oracle_noise_ratio": summary.pop("oracle_noise_ratio", None),
        "images_per_second": round(images / trainer.seconds, 1) if trainer.seconds else None,
        "train_seconds": round(trainer.seconds, 3),
        "seconds_before": round(trainer.seconds_before, 3),
        "data": summary,
        "config": dataclasses.asdict(trainer.config),
        "config_hash": trainer.config.hash(),
        "device": device_name(trainer.device),
        "processes": trainer.processes.world_size,
        "precision": trainer.engine.precision,
        "versions": versions(),
    }


def accuracies(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Accuracies after the last epoch, the selected epoch, and the best epoch on the test set."""
    selected = _selected(history)
    best = max(history, key=lambda row: row["accuracy"]) if "accuracy" in history[-1] else None
    return {
        "accuracy_last": history[-1].get("accuracy"),
        "accuracy_selected": selected.get("accuracy") if selected else None,
        "selected_epoch": selected["epoch"] if selected else None,
        "accuracy_best_on_test": best["accuracy"] if best else None,
        "best_epoch_on_test": best["epoch"] if best else None,
    }


def _selected(history: list[dict[str, Any]]) -> dict[str, Any] | None:
    return history[history[-1]["selected"] - 1] if "selected" in history[-1] else None


def _self_training(trainer: SelfTrainer) -> dict[str, Any]:
    """What self-training started from, and how healthy its pseudo-labels were at the end."""
    before, last = trainer.before, trainer.history[-1]
    names = ("accuracy_last", "accuracy_selected")
    predicted = trainer.memory.argmax(1).unique().tolist()
    if missing := [name for k, name in enumerate(trainer.task.classes) if k not in predicted]:
        log.warning(
            "%d of %d classes are never predicted: %s", len(missing), len(trainer.task.classes), _listed(missing)
        )
    return {
        **{f"{name}_before_self_training": before.get(name) for name in names},
        "accuracy_last_mirrored": trainer.mirrored_accuracy(),
        "self_training_lr_used": trainer.lr,
        "class_prior": before["prior"],
        "class_prior_error": before["prior_error"],
        "class_coverage_last": last.get("class_coverage"),
        "confidence_last": last.get("confidence"),
    }


def _by_class(row: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    accuracy = torch.tensor([float("nan") if a is None else a for a in row["per_class"]], dtype=torch.float64)
    result: dict[str, Any] = {"per_class_accuracy": row["per_class"], "macro_accuracy": float(accuracy.nanmean())}
    counts = summary.get("oracle_class_counts")
    if counts and max(counts) > 2 * min(counts):  # head, middle and tail are meaningless for classes of equal size
        result |= {f"{part}_accuracy": value for part, value in scores.thirds(accuracy, torch.tensor(counts)).items()}
    return result
