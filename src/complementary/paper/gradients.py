"""How far the gradient of a complementary loss is from that of the true labels: an oracle study, it needs truth.

Three gradients of one mixed batch (protocol, section 10):

- f: of cross-entropy with the true labels, weighted as the images are mixed: what one would like to follow;
- c: of the complementary loss with the labels that happened to be drawn: what one follows;
- b: the mean of c over all labels that could have been drawn, each example's from row ``truth`` of the
  transition matrix.

    MSE = E|c - f|²  =  |b - f|² + E|c - b|²  =  bias² + variance

The expectation is over the labels of the batch, drawn independently for each *example*: where an example is
its own mix's member and another's partner, both see the same label. (The paper's Eq. 11 averages over the
labels other than the *drawn* one; its b then depends on the draw, and the cross term does not vanish.)

Exact in K passes: losses are linear in ``excluded``, so c is a sum over examples n of a gradient h_n(label of
n), where h_n(k) collects every mix that n is a member of. Labels are independent, therefore
E|c - b|² = sum_n (sum_k T[y_n, k] |h_n(k)|² - |sum_k T[y_n, k] h_n(k)|²). One pass per class gives h_n(k) for
all n at once; memory is three times examples x weights. `sampled` draws labels instead: for large networks,
and for those with batch norm, whose examples cannot be told apart in training mode.

    >>> import torch
    >>> from complementary import gradients, losses, mix, models, transitions
    >>> x, truth, T = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]), transitions.uniform(3)
    >>> batch = gradients.mixed(mix.Mixup(), x, truth)
    >>> found = gradients.exact(models.build("linear", (4,), 3), losses.s_nl, batch, T)
    >>> bool((found.mse - found.bias_squared - found.variance).abs() < 1e-6)
    True

Gradient MSE, bias² and variance of mixing methods while a network learns: an oracle study.

The network is trained on the *true* labels (protocol, section 10: SGD, learning rate 1e-4), so this can
never be part of training; it shows what `gradients` measures along the way.

    >>> from complementary.config import Config
    >>> from complementary.paper.gradients import study
    >>> rows = study(Config.of(data="digits", model="linear", batch=64), methods=("none",), steps=0, device="cpu")
    >>> [sorted(row) for row in rows]
    [['loss', 'method', 'oracle_bias_squared', 'oracle_mse', 'oracle_variance', 'step']]

The study of gradients: not a training run, so it has a runner and files of its own in the store.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

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
from complementary.rng import generator
from complementary.training.task import Task, build_mixer, build_task, training_truth
from complementary.training.trainer import Trainer


class Moments(NamedTuple):
    """Squared distances between gradients, summed over all weights of the network: float64 scalars."""

    mse: Tensor
    bias_squared: Tensor
    variance: Tensor


class Mixed(NamedTuple):
    """A mixed batch whose labels are still to be drawn.

    x [B, ...]; truth int [B]: of the examples; members int [B, M]: who is in each mix, itself first;
    image_weight, label_weight [B, M]; share [B]: the part of each mix in the mean over the batch.
    """

    x: Tensor
    truth: Tensor
    members: Tensor
    image_weight: Tensor
    label_weight: Tensor
    share: Tensor

    def soft(self, labels: Tensor) -> Tensor:
        """What the loss is given if the examples' labels [B, K] are these (one-hot, or their expectation). [B, K]."""
        return (self.label_weight[..., None] * labels[self.members]).sum(1)

    def target(self, classes: int) -> Tensor:
        """The true classes, weighted as the images are: [B, K]."""
        one_hot = nn.functional.one_hot(self.truth, classes).to(self.image_weight.dtype)
        return (self.image_weight[..., None] * one_hot[self.members]).sum(1)


def mixed(
    mixer: GroupMixup | None,
    x: Tensor,
    truth: Tensor,
    cluster: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Mixed:
    """Mix as ``mixer`` does (None: not at all), but keep who was mixed: x float [B, ...], truth int [B]."""
    count = len(x)
    own = torch.arange(count, device=x.device)[:, None]
    if mixer is None:
        one = torch.ones(count, 1, device=x.device)
        return Mixed(x, truth, own, one, one, torch.full((count,), 1 / count, device=x.device))
    _check(mixer)
    draw = mixer.draw(count, x.device, generator)
    chosen, found = mixer.pick(torch.empty(count, 0, device=x.device), cluster, None, draw.partner)
    members = torch.cat([own, chosen], 1)
    image_weight, label_weight = mixer.weights([x[column] for column in members.unbind(1)], draw.weight)
    image_weight = _first(image_weight) if mixer.share != "new-data" else image_weight
    if mixer.alone == "keep":
        image_weight, label_weight = (
            torch.where(found[:, None], weight, _first(weight)) for weight in (image_weight, label_weight)
        )
    blended = torch.einsum("bm,bm...->b...", image_weight, x[members])
    blended = torch.where(found.view(-1, *[1] * (x.ndim - 1)), blended, 0.0 if mixer.alone == "black" else x)
    counted = torch.ones_like(found) if mixer.alone == "keep" else found
    total = torch.full_like(found.sum(), count) if mixer.alone == "black" else counted.sum().clamp_min(1)
    return Mixed(blended, truth, members, image_weight, label_weight, counted / total)


def _first(weight: Tensor) -> Tensor:
    """All weight on the example itself. [B, M] -> [B, M]."""
    return torch.zeros_like(weight).index_fill(1, torch.zeros(1, dtype=torch.long, device=weight.device), 1.0)


def _check(mixer: GroupMixup) -> None:
    name = type(mixer).__name__
    if isinstance(mixer, (SameExcluded, ExtraClass)):
        raise UserError(
            f"The mixer {name} chooses partners by their labels, so labels cannot be drawn anew for its mixes; "
            "use mixup, icm, micm or intra-class, with noise_free for mixes without a lie."
        )
    if mixer.share == "hard-label":
        raise UserError("With --share hard-label the loss is not linear in the labels; use new-data or soft-label.")
    if mixer.pool is not None:
        raise UserError("The gradient study mixes inside the batch; use --partners-from batch.")


def label_chances(batch: Mixed, transition: Tensor, noise_free: bool = False) -> Tensor:
    """How likely each label of each example is: float64 [B, K], rows of ``transition`` [K, K].

    noise_free: given that no label names the true class of anyone its example is mixed with. Since that
    forbids labels example by example, they stay independent. Who could not have a label then keeps all.
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


# --- exactly -----------------------------------------------------------------------------------------


def exact(
    model: nn.Module,
    loss: Loss,
    batch: Mixed,
    transition: Tensor,
    *,
    loss_transition: Tensor | None = None,
    noise_free: bool = False,
) -> Moments:
    """The moments, over every possible draw of labels: K passes of gradients example by example.

    ``transition`` [K, K]: how labels arise. ``loss_transition``: what the loss is given; None: the same. The
    network computes in the mode that it is in.
    """
    if model.training and any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        raise UserError("With batch norm in training mode examples have no gradients of their own; use draws=64.")
    chances, matrix = label_chances(batch, transition, noise_free), _matrix(loss_transition, transition, batch)
    classes = chances.shape[1]
    towards = (batch.share[:, None] * per_example(model, cross_entropy, batch.x, batch.target(classes))).sum(0).double()
    weight = batch.share[:, None] * batch.label_weight
    mean_of, squares = torch.zeros(()), torch.zeros((), dtype=torch.float64, device=batch.x.device)
    for k in range(classes):
        named = nn.functional.one_hot(torch.full_like(batch.truth, k), classes).float()
        gradient = per_example(model, loss, batch.x, named, matrix)  # [B, D], of each mix
        of_member = torch.zeros_like(gradient)  # h_n(k)
        for m, column in enumerate(batch.members.unbind(1)):
            of_member.index_add_(0, column, weight[:, m : m + 1] * gradient)
        squares += (chances[:, k] * of_member.square().sum(1, dtype=torch.float64)).sum()
        mean_of = mean_of + chances[:, k : k + 1].to(gradient.dtype) * of_member
    spread = mean_of.square().sum(dtype=torch.float64)
    mean = mean_of.sum(0, dtype=torch.float64)
    second = squares - spread + mean.square().sum()  # E|c|²
    mse = second - 2 * (mean @ towards) + towards.square().sum()
    return Moments(mse, (mean - towards).square().sum(), squares - spread)


def per_example(model: nn.Module, loss: Loss, x: Tensor, target: Tensor, transition: Tensor | None = None) -> Tensor:
    """The gradient of the loss of each example: x [B, ...], target [B, K] -> [B, D], D weights."""
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


# --- by drawing --------------------------------------------------------------------------------------


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
) -> Moments:
    """The moments over ``draws`` draws of labels, one backward pass each; b and so bias² are exact.

    MSE = bias² + variance up to the error of drawing. One forward pass serves all, so batch norm sees the
    batch once.
    """
    chances, matrix = label_chances(batch, transition, noise_free), _matrix(loss_transition, transition, batch)
    weights, logits = list(model.parameters()), model(batch.x)

    def flat(loss: Loss, target: Tensor) -> Tensor:
        mean = (batch.share * loss(logits, target, matrix)).sum()
        return torch.cat([g.flatten() for g in torch.autograd.grad(mean, weights, retain_graph=True)]).double()

    towards = flat(cross_entropy, batch.target(chances.shape[1]))
    mean = flat(loss, batch.soft(chances.float()))
    errors = torch.zeros(2, dtype=torch.float64, device=batch.x.device)
    for _ in range(draws):
        drawn = torch.multinomial(chances, 1, generator=generator)[:, 0]
        found = flat(loss, batch.soft(nn.functional.one_hot(drawn, chances.shape[1]).float()))
        errors += torch.stack([(found - towards).square().sum(), (found - mean).square().sum()])
    return Moments(errors[0] / draws, (mean - towards).square().sum(), errors[1] / draws)


STUDY_METHODS = ("none", "mixup", "icm", "micm")
NOISE_FREE = "-noise-free"  # after a mixer's name: labels given that no mix tells a lie


def study(
    config: Config,
    dataset: Dataset | None = None,
    methods: Sequence[str] = STUDY_METHODS,
    *,
    steps: int = 300,
    every: int = 50,
    lr: float = 1e-4,
    draws: int | None = None,
    device: str = "auto",
) -> list[dict[str, Any]]:
    """Train on the *true* labels of unmixed batches by SGD, measuring all methods before every so many steps.

    One network serves all methods, so they are compared at the same weights and on the same batches.
    methods: names of mixers, also followed by ``-noise-free`` (labels given that no mix tells a lie).
    draws: None measures exactly; a number draws labels (needed for networks with batch norm). Loss, network,
    data, batch and mixing options are the configuration's; its ``mix`` is not used. -> one row of plain
    values for each measurement.
    """
    dataset = dataset or data.load(config.dataset.data)
    if every < 1 or steps < 0 or not lr > 0:
        raise UserError(f"steps is {steps}, every {every} and lr {lr}; wanted steps >= 0, every >= 1 and lr > 0.")
    mixers = [one_of("The method", name.removesuffix(NOISE_FREE), MIXERS) for name in methods]
    clustered = any(MIXED_WITHIN[mix] == "clusters" for mix in mixers)
    task = build_task(config.with_(mix="icm" if clustered else "none"), dataset, device)
    truth = training_truth(config, dataset)
    transition = _label_transition(config, dataset, task, truth)
    trainer = Trainer(config.with_(mix="none"), task, device)
    bench = Bench(trainer, truth.to(trainer.device), transition, draws)
    optimiser = torch.optim.SGD(trainer.model.parameters(), lr)
    rows = []
    for step in range(steps + 1):
        index = _batch(config, len(truth), step).to(trainer.device)
        x, _ = trainer.load(index, generator(config.seed, "gradients", step, device=trainer.device))
        trainer.model.train()
        if step % every == 0:
            rows += [_row(step, name, config, bench.measure(name, config, x, index, step)) for name in methods]
        optimiser.zero_grad()
        nn.functional.cross_entropy(trainer.model(x), bench.truth[index]).backward()
        optimiser.step()
    return rows


class Bench:
    """What measurements share: the network in training, the true labels int [N] and how labels arise [K, K]."""

    def __init__(self, trainer: Trainer, truth: Tensor, transition: Tensor, draws: int | None) -> None:
        self.trainer, self.truth, self.transition, self.draws = trainer, truth, transition, draws

    def measure(self, name: str, config: Config, x: Tensor, index: Tensor, step: int) -> Moments:
        """Mix the batch x [B, ...] of the examples at ``index`` int [B] by the named method, and measure."""
        task, loss = self.trainer.task, LOSSES[config.training.loss]
        random = generator(config.seed, "gradients-mix", step, device=x.device)
        mix = name.removesuffix(NOISE_FREE)
        mixer = build_mixer(config.with_(mix=mix), task, None)
        batch = mixed(mixer, x, self.truth[index], self._group(mix, index), random)
        options: dict[str, Any] = {"noise_free": name.endswith(NOISE_FREE)}
        options["loss_transition"] = task.loss_transition
        if self.draws is None:
            return exact(self.trainer.model, loss, batch, self.transition, **options)
        return sampled(self.trainer.model, loss, batch, self.transition, self.draws, random, **options)

    def _group(self, mix: str, index: Tensor) -> Tensor | None:
        groups = {"nothing": None, "clusters": self.trainer.task.cluster, "truth": self.truth}
        group = groups[MIXED_WITHIN[mix]]
        return None if group is None else group[index]


def _row(step: int, name: str, config: Config, found: Moments) -> dict[str, Any]:
    values = {f"oracle_{field}": float(value) for field, value in found._asdict().items()}
    return {"step": step, "method": name, "loss": config.training.loss, **values}


def _label_transition(config: Config, dataset: Dataset, task: Task, truth: Tensor) -> Tensor:
    """How the labels of this task arise, [K, K]: counted from the true labels where they came with the data."""
    most = int(task.excluded.sum(1).max())
    if most != 1:
        raise UserError(f"The gradient study draws one label per example, but here examples have up to {most}.")
    if label_source(config, dataset) == "given":
        return oracle.empirical_transition(truth, task.excluded)
    return task.transition


def _batch(config: Config, examples: int, step: int) -> Tensor:
    """The examples of a step: int [B]. Every epoch has an order of its own; the last partial batch is dropped."""
    size = config.training.batch
    epoch, place = divmod(step, examples // size)
    order = torch.randperm(examples, generator=generator(config.seed, "gradients-order", epoch))
    return order[place * size : (place + 1) * size]


METHODS = ("mixup", "mixup-noise-free", "icm", "intra-class")
MEASUREMENTS = 100  # along a training, at most
FIGURES = {"oracle_mse": "MSE", "oracle_bias_squared": "bias²", "oracle_variance": "variance"}


def run(config: Config, store: Path, protocol: str, draws: int, device: str) -> Path:
    """Measure all methods along a training by true labels -> the file; one that is there is left as it is.

    draws: of labels, for each measurement; 0: exact, which networks with batch norm do not allow.
    """
    path = (
        store / "gradients" / f"gradients-{config.dataset.data}-{protocol}-{config.hash()[:12]}-seed{config.seed}.json"
    )
    if path.exists():
        read(path)
        return path
    started, where = time.time(), Engine.of(device).device
    steps = config.training.epochs * (len(training_truth(config)) // config.training.batch)
    every = max(1, steps // MEASUREMENTS)
    rows = study(config, methods=METHODS, steps=steps, every=every, draws=draws or None, device=str(where))
    content = {
        "gradients": rows,
        "protocol": protocol,
        "draws": draws,
        "settings": asdict(config),
        "seconds": time.time() - started,
        "device": device_name(where),
        "versions": versions(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, (json.dumps(content) + "\n").encode())
    return path


def files(stores: Sequence[Path]) -> list[Path]:
    """All files of this study in some stores."""
    return [path for store in stores for path in sorted(store.rglob("gradients-*.json"))]


def read(path: Path) -> dict[str, Any]:
    """The content of such a file, checked."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for row in content["gradients"]:
            row["step"], row["method"], [float(row[name]) for name in FIGURES]
        settings = content["settings"]
        content["protocol"], settings["dataset"]["data"], int(settings["seed"]), int(settings["training"]["epochs"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it, and run 'cll paper gradients' again.") from None
    return content
