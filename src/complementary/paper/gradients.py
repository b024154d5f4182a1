"""How far the gradient of a complementary loss is from that of the true labels. An oracle study: it needs true labels.

Three gradients of one batch:

- f: of cross-entropy with the true labels, the gradient one would like to follow. Target ``clean``: of the ordinary
  batch, as the paper says (Eq. 9), so all methods share one target. Target ``mixed``: of the mixed inputs, with the
  true labels weighted as the inputs are, so each method has its own target;
- c: of the complementary loss with the labels that were drawn: the gradient one follows;
- b: the mean of c over all labels that could have been drawn, each from row ``truth`` of the transition matrix.

    MSE = E|c - f|²  =  |b - f|² + E|c - b|²  =  bias² + variance

The expectation is over the labels of the batch, drawn independently for each *example*: if an example is a member of
several mixes, it has the same label in all of them. Divided by |f|², the three numbers can be compared between
networks, datasets and epochs. (The paper's Eq. 11 averages over the labels other than the *drawn*
one; its b then depends on the draw, and the cross term does not vanish.)

`exact` needs K passes: losses are linear in ``excluded``, so c is a sum over examples n of a gradient h_n(label of n),
where h_n(k) sums over every mix that n is a member of. Labels are independent, therefore
E|c - b|² = sum_n (sum_k T[y_n, k] |h_n(k)|² - |sum_k T[y_n, k] h_n(k)|²). One pass per class gives h_n(k) for all n at
once; memory is three times examples x weights. `sampled` draws labels instead: for large networks, and for networks
with batch norm, which have no gradient per example in training mode.

    >>> import torch
    >>> from complementary import losses, mixing, networks, transitions
    >>> from complementary.paper import gradients
    >>> x, truth, T = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]), transitions.uniform(3)
    >>> batch = gradients.mixed(mixing.Mixup(), x, truth)
    >>> found = gradients.exact(networks.build("linear", (4,), 3), losses.s_nl, batch, T)
    >>> bool((found.mse - found.bias_squared - found.variance).abs() < 1e-6)
    True

`study` measures several mixing methods while a network is trained on the true labels.
"""

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from complementary import data, oracle
from complementary.config import MIXED_WITHIN, Config
from complementary.data import Dataset
from complementary.data.selection import label_source
from complementary.engine.backend import Engine, device_name, versions
from complementary.errors import UserError, one_of
from complementary.files import atomic_write
from complementary.losses import LOSSES, Loss
from complementary.mixing import MIXERS, ExtraClass, GroupMixup, SameExcluded
from complementary.paper.store import read_measurement
from complementary.paper.studies import Protocol
from complementary.rng import generator
from complementary.training.task import Task, build_mixer, build_task, training_truth
from complementary.training.trainer import Trainer

log = logging.getLogger(__name__)

METHODS = ("mixup", "mixup-noise-free", "icm", "intra-class")
LINEAR = ("s-nl", "s-exp", "fwd", "dm")  # losses that are linear in the labels, and need no prior: those of the paper
NOISE_FREE = "-noise-free"  # after the name of a mixer: labels given that no mix is noisy
MEASUREMENTS = 20  # during a training: enough for a curve, and for the error of a mean
Target = Literal["clean", "mixed"]


class Moments(NamedTuple):
    """Squared lengths, summed over all weights of the network: float64 scalars. ``target_squared`` is |f|²."""

    mse: Tensor
    bias_squared: Tensor
    variance: Tensor
    target_squared: Tensor


class Mixed(NamedTuple):
    """A mixed batch whose labels are not drawn yet.

    Attributes:
        x: the mixed inputs, [B, ...].
        clean: the inputs before they were mixed, [B, ...].
        truth: true classes of the examples, int [B].
        members: examples in each mix, the own one first, int [B, M].
        image_weight: weights of the inputs, [B, M].
        label_weight: weights of the labels, [B, M].
        share: weight of each mix in the mean over the batch, [B].
    """

    x: Tensor
    clean: Tensor
    truth: Tensor
    members: Tensor
    image_weight: Tensor
    label_weight: Tensor
    share: Tensor

    def soft(self, labels: Tensor) -> Tensor:
        """The labels of the mixes [B, K], given those of the examples [B, K] (one-hot, or their expectation)."""
        return (self.label_weight[..., None] * labels[self.members]).sum(1)

    def target(self, classes: int, kind: Target) -> tuple[Tensor, Tensor, Tensor]:
        """What f is the gradient of: inputs [B, ...], true classes [B, K] and weights of the examples [B]."""
        one_hot = nn.functional.one_hot(self.truth, classes).to(self.image_weight.dtype)
        if kind == "clean":
            return self.clean, one_hot, torch.full_like(self.share, 1 / len(self.truth))
        return self.x, (self.image_weight[..., None] * one_hot[self.members]).sum(1), self.share


def mixed(
    mixer: GroupMixup | None,
    x: Tensor,
    truth: Tensor,
    cluster: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Mixed:
    """Mix a batch as ``mixer`` does, and keep which examples were mixed.

    Args:
        mixer: None: no mixing.
        x: inputs, float [B, ...].
        truth: true classes, int [B].
        cluster: what the mixer mixes within, int [B].
        generator: for the random draws.
    """
    count = len(x)
    own = torch.arange(count, device=x.device)[:, None]
    if mixer is None:
        one = torch.ones(count, 1, device=x.device)
        return Mixed(x, x, truth, own, one, one, torch.full((count,), 1 / count, device=x.device))
    _check(mixer)
    draw = mixer.draw(count, x.device, generator)
    chosen, found = mixer.pick(torch.empty(count, 0, device=x.device), cluster, None, draw.partner)
    members = torch.cat([own, chosen], 1)
    image_weight, label_weight = mixer.weights([x[column] for column in members.unbind(1)], draw.weight, chosen)
    image_weight = _own(image_weight) if mixer.share != "new-data" else image_weight
    if mixer.alone == "keep":
        image_weight, label_weight = (
            torch.where(found[:, None], weight, _own(weight)) for weight in (image_weight, label_weight)
        )
    blended = torch.einsum("bm,bm...->b...", image_weight, x[members])
    blended = torch.where(found.view(-1, *[1] * (x.ndim - 1)), blended, 0.0 if mixer.alone == "black" else x)
    counted = torch.ones_like(found) if mixer.alone == "keep" else found
    total = torch.full_like(found.sum(), count) if mixer.alone == "black" else counted.sum().clamp_min(1)
    return Mixed(blended, x, truth, members, image_weight, label_weight, counted / total)


def _own(weight: Tensor) -> Tensor:
    """All weight on the example itself. [B, M] -> [B, M]."""
    return torch.zeros_like(weight).index_fill(1, torch.zeros(1, dtype=torch.long, device=weight.device), 1.0)


def _check(mixer: GroupMixup) -> None:
    if isinstance(mixer, (SameExcluded, ExtraClass)):
        raise UserError(
            f"The mixer {type(mixer).__name__} chooses partners by their labels, so the labels of its mixes cannot be "
            "drawn again; use mixup, icm, micm or intra-class.",
            "mix",
        )
    if mixer.share == "hard-label":
        raise UserError("With hard labels the loss is not linear in the labels; use new-data or soft-label.", "share")
    if mixer.pool is not None:
        raise UserError("The gradient study mixes within the batch; partners_from must be batch.", "partners_from")


def label_chances(batch: Mixed, transition: Tensor, noise_free: bool = False) -> Tensor:
    """The probability of each label of each example.

    Args:
        batch: the mixes.
        transition: [K, K]; row k is the distribution of the labels of class k.
        noise_free: given that no label excludes the true class of an example it is mixed with. This rules out labels
            example by example, so labels stay independent. Examples without any such label keep all of them.

    Returns:
        float64 [B, K].
    """
    chances = transition.to(batch.x.device, torch.float64)[batch.truth]
    if not noise_free:
        return chances
    classes = nn.functional.one_hot(batch.truth, len(transition)).double()
    met = torch.zeros_like(chances)
    for i in range(batch.members.shape[1]):
        for j in range(batch.members.shape[1]):
            if i != j:
                met.index_add_(0, batch.members[:, i], (batch.share > 0)[:, None] * classes[batch.members[:, j]])
    clean = torch.where((met > 0) & (classes == 0), 0.0, chances)
    total = clean.sum(1, keepdim=True)
    return torch.where(total > 1e-9, clean / total.clamp_min(1e-9), chances)


def exact(
    model: nn.Module,
    loss: Loss,
    batch: Mixed,
    transition: Tensor,
    *,
    loss_transition: Tensor | None = None,
    noise_free: bool = False,
    target: Target = "clean",
) -> Moments:
    """The moments over every possible draw of labels: K passes of per-example gradients.

    Args:
        model: the network, in the mode that it is in.
        loss: a complementary loss.
        batch: the mixes.
        transition: how labels are drawn, [K, K].
        loss_transition: the matrix that the loss uses; None: the same.
        noise_free: as in `label_chances`.
        target: what f is the gradient of; see the module.
    """
    if model.training and any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        raise UserError(
            "With batch norm in training mode there are no gradients per example; set draws, for example to 16.",
            "draws",
        )
    chances, matrix = label_chances(batch, transition, noise_free), _matrix(loss_transition, transition, batch)
    classes = chances.shape[1]
    inputs, true_classes, share = batch.target(classes, target)
    towards = (share[:, None] * per_example(model, cross_entropy, inputs, true_classes)).sum(0).double()
    weight = batch.share[:, None] * batch.label_weight
    mean_of, squares = torch.zeros(()), torch.zeros((), dtype=torch.float64, device=batch.x.device)
    for k in range(classes):
        excluded = nn.functional.one_hot(torch.full_like(batch.truth, k), classes).float()
        gradient = per_example(model, loss, batch.x, excluded, matrix)  # [B, D], of each mix
        of_member = torch.zeros_like(gradient)  # h_n(k)
        for m, column in enumerate(batch.members.unbind(1)):
            of_member.index_add_(0, column, weight[:, m : m + 1] * gradient)
        squares += (chances[:, k] * of_member.square().sum(1, dtype=torch.float64)).sum()
        mean_of = mean_of + chances[:, k : k + 1].to(gradient.dtype) * of_member
    spread = mean_of.square().sum(dtype=torch.float64)
    mean = mean_of.sum(0, dtype=torch.float64)
    second = squares - spread + mean.square().sum()  # E|c|²
    wanted = towards.square().sum()
    mse = second - 2 * (mean @ towards) + wanted
    return Moments(mse, (mean - towards).square().sum(), squares - spread, wanted)


def per_example(
    model: nn.Module, loss: Callable[..., Tensor], x: Tensor, target: Tensor, transition: Tensor | None = None
) -> Tensor:
    """The gradient of the loss of each example: x [B, ...], target [B, K] -> [B, D] with D weights."""
    weights = {name: value.detach() for name, value in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def of_one(weights: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, (weights, buffers), (x[None],))
        return loss(logits, target[None], transition)[0]

    found = vmap(grad(of_one), in_dims=(None, 0, 0))(weights, x, target)
    return torch.cat([found[name].flatten(1) for name in weights], 1)


def cross_entropy(logits: Tensor, target: Tensor, transition: Tensor | None = None) -> Tensor:
    """-sum_k q_k log p_k with the *true* classes q: an oracle. [B, K], [B, K] -> [B]."""
    return -(target * logits.float().log_softmax(1)).sum(1)


def _matrix(loss_transition: Tensor | None, transition: Tensor, batch: Mixed) -> Tensor:
    return (transition if loss_transition is None else loss_transition).to(batch.x.device, torch.float32)


def sampled(
    model: nn.Module,
    loss: Loss,
    batch: Mixed,
    transition: Tensor,
    draws: int,
    generator: torch.Generator | None = None,
    *,
    loss_transition: Tensor | None = None,
    noise_free: bool = False,
    target: Target = "clean",
) -> Moments:
    """The moments over ``draws`` draws of labels, one backward pass each; b and therefore bias² are exact.

    The MSE is their sum, which has a much smaller sampling error than the mean of |c - f|²: the product of c - b and
    b - f, which vanishes on average, is left out. All draws share one forward pass of the mixed batch.
    The other arguments are those of `exact`.
    """
    chances, matrix = label_chances(batch, transition, noise_free), _matrix(loss_transition, transition, batch)
    weights, logits = list(model.parameters()), model(batch.x)
    inputs, true_classes, share = batch.target(chances.shape[1], target)

    def flat(losses: Tensor, share: Tensor = batch.share) -> Tensor:
        found = torch.autograd.grad((share * losses).sum(), weights, retain_graph=True)
        return torch.cat([g.flatten() for g in found]).double()

    towards = flat(cross_entropy(logits if target == "mixed" else model(inputs), true_classes), share)
    mean = flat(loss(logits, batch.soft(chances.float()), matrix))
    variance = torch.zeros((), dtype=torch.float64, device=batch.x.device)
    for _ in range(draws):
        drawn = torch.multinomial(chances, 1, generator=generator)[:, 0]
        found = flat(loss(logits, batch.soft(nn.functional.one_hot(drawn, chances.shape[1]).float()), matrix))
        variance += (found - mean).square().sum() / draws
    bias_squared = (mean - towards).square().sum()
    return Moments(bias_squared + variance, bias_squared, variance, towards.square().sum())


# --- the study ------------------------------------------------------------------------------------------------------


def study(
    config: Config,
    dataset: Dataset | None = None,
    methods: Sequence[str] = METHODS,
    *,
    steps: int = 300,
    every: int = 50,
    lr: float = 1e-4,
    draws: int | None = None,
    target: Target = "clean",
    device: str = "auto",
) -> list[dict[str, Any]]:
    """Train on the *true* labels of unmixed batches with SGD, and measure all methods on the way.

    All methods share one network, so they are compared at the same weights and on the same batches.

    Args:
        config: loss, network, data, batch size and mixing options; its ``mix`` is not used.
        dataset: by default that of the configuration.
        methods: names of mixers; with the suffix ``-noise-free``, labels given that no mix is noisy.
        steps: training steps.
        every: steps between two measurements.
        lr: learning rate.
        draws: label draws per measurement; None: exact, for networks without batch norm.
        target: what f is the gradient of; see the module.
        device: where to compute.

    Returns:
        One row of plain values for each measurement and method.
    """
    dataset = dataset or data.load(config.dataset.data)
    if every < 1 or steps < 0 or not lr > 0:
        raise UserError(f"steps is {steps}, every {every} and lr {lr}; wanted steps >= 0, every >= 1 and lr > 0.")
    one_of("target", target, get_args(Target))
    one_of("The loss of the study", config.training.loss, LINEAR, "loss")
    mixers = [one_of("The method", name.removesuffix(NOISE_FREE), MIXERS) for name in methods]
    clustered = any(MIXED_WITHIN[mix] == "clusters" for mix in mixers)
    task = build_task(config.with_(mix="icm" if clustered else "none"), dataset, device)
    truth = training_truth(config, dataset)
    transition = _label_transition(config, dataset, task, truth)
    trainer = Trainer(config.with_(mix="none"), task, device)
    truth = truth.to(trainer.device)
    optimizer = torch.optim.SGD(trainer.model.parameters(), lr)
    rows = []
    for step in range(steps + 1):
        if step % (10 * every) == 0:
            log.info("gradients: step %d of %d", step, steps)
        index = _batch(config, len(truth), step).to(trainer.device)
        x, _ = trainer.load(index, generator(config.seed, "gradients", step, device=trainer.device))
        trainer.model.train()
        for name in methods if step % every == 0 else ():
            random = generator(config.seed, "gradients-mix", step, device=x.device)
            found = _measure(name, config, trainer, x, truth, index, transition, draws, target, random)
            values = {f"oracle_{field}": float(value) for field, value in found._asdict().items()}
            rows.append({"step": step, "method": name, "target": target, "loss": config.training.loss, **values})
        optimizer.zero_grad()
        nn.functional.cross_entropy(trainer.model(x), truth[index]).backward()
        optimizer.step()
    return rows


def _measure(
    name: str,
    config: Config,
    trainer: Trainer,
    x: Tensor,
    truth: Tensor,
    index: Tensor,
    transition: Tensor,
    draws: int | None,
    target: Target,
    random: torch.Generator,
) -> Moments:
    """Mix the batch x [B, ...] of the examples at ``index`` int [B] with the named method, and measure."""
    task, mix, loss = trainer.task, name.removesuffix(NOISE_FREE), LOSSES[config.training.loss]
    within = {"nothing": None, "clusters": task.cluster, "truth": truth}[MIXED_WITHIN[mix]]
    mixer = build_mixer(config.with_(mix=mix), task)
    batch = mixed(mixer, x, truth[index], None if within is None else within[index], random)
    options: dict[str, Any] = {"noise_free": name.endswith(NOISE_FREE), "target": target}
    options |= {"loss_transition": task.loss_transition}
    if draws is None:
        return exact(trainer.model, loss, batch, transition, **options)
    return sampled(trainer.model, loss, batch, transition, draws, random, **options)


def _label_transition(config: Config, dataset: Dataset, task: Task, truth: Tensor) -> Tensor:
    """How the labels of this task are drawn, [K, K]: counted with the true labels if they came with the data."""
    most = int(task.excluded.sum(1).max())
    if most != 1:
        raise UserError(f"The gradient study draws one label per example, but here examples have up to {most}.")
    if label_source(config, dataset) == "given":
        return oracle.empirical_transition(truth, task.excluded)
    return task.transition


def _batch(config: Config, examples: int, step: int) -> Tensor:
    """The examples of a step, int [B]. Every epoch has its own order; the last partial batch is dropped."""
    size = config.training.batch
    epoch, place = divmod(step, examples // size)
    order = torch.randperm(examples, generator=generator(config.seed, "gradients-order", epoch))
    return order[place * size : (place + 1) * size]


def run(config: Config, store: Path, protocol: Protocol, draws: int, device: str, target: Target = "clean") -> Path:
    """Measure all methods during one training and write them to a file in the store, unless it exists.

    Args:
        config: the setting and seed.
        store: where the file is written.
        protocol: recorded in the file.
        draws: label draws per measurement; 0: exact, for networks without batch norm.
        device: where to compute.
        target: what f is the gradient of; see the module.

    Returns:
        The file.
    """
    kind = protocol if target == "clean" else f"{protocol}-{target}"
    name = f"gradients-{config.dataset.data}-{kind}-{config.hash()[:12]}-seed{config.seed}.json"
    path = store / "gradients" / name
    if path.exists():
        read_measurement(path)
        return path
    started, where = time.time(), Engine.of(device).device
    steps = config.training.epochs * (len(training_truth(config)) // config.training.batch)
    every = max(1, steps // MEASUREMENTS)
    rows = study(config, steps=steps, every=every, draws=draws or None, target=target, device=str(where))
    content = {
        "gradients": rows,
        "protocol": protocol,
        "draws": draws,
        "target": target,
        "steps_per_epoch": steps // config.training.epochs,
        "config": asdict(config),
        "seconds": round(time.time() - started, 3),
        "device": device_name(where),
        "versions": versions(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, json.dumps(content, sort_keys=True) + "\n")
    return path
