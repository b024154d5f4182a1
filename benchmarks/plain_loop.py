"""The plain loop that speed is compared with: ICM as it is usually written, written by us and not slowed down.

A DataLoader with worker processes (persistent, pinned memory on a GPU), NumPy transforms of one image at a time,
float32 with torch's defaults, a Python loop over the batch that looks up a partner in the same cluster and mixes one
image after the other, ``zero_grad``, ``backward``, Adam, and ``loss.item()`` for the log in every step. Network, loss,
augmentation and mixing are those of this package, so both loops learn the same. The plain loop runs in its own
process and alternates with ours.
"""

import dataclasses
import functools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from benchmarks.setting import Net, Row, Scale, Setting, clustered, in_turn, log, synthetic, times_as_fast, wait
from benchmarks.training import repeat, started, stepper, trainer_of
from complementary import networks
from complementary.losses import s_nl
from complementary.rng import generator
from complementary.training.task import Task

Images = NDArray[np.uint8]
Example = tuple[Tensor, Tensor, int]
LOOPS = ("none", "icm")
PADDING, ALPHA, RATE, DECAY = 4, 0.4, 1e-3, 1e-4  # the defaults of `Trainer` for images of 32 x 32


class PlainImages(TorchDataset[Example]):
    """Images, complementary labels and clusters, one example at a time: x float [C, H, W], excluded [K], cluster."""

    def __init__(self, task: Task, count: int) -> None:
        self.images: Images = task.inputs[:count].cpu().numpy()
        self.excluded = task.excluded[:count].cpu().float()
        assert task.cluster is not None
        self.cluster: list[int] = task.cluster[:count].tolist()
        self.mean, self.std = (t.cpu().float().numpy()[:, None, None] for t in (task.mean, task.std))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> Example:
        down, right = torch.randint(-PADDING, PADDING + 1, (2,)).tolist()
        flip = bool(torch.rand(()) < 0.5)
        x = transform(self.images[place], down, right, flip, self.mean, self.std)
        return torch.from_numpy(x), self.excluded[place], self.cluster[place]


def transform(
    image: Images, down: int, right: int, flip: bool, mean: NDArray[np.float32], std: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Pad by reflection, crop, flip and normalize one image uint8 [C, H, W] -> float32 [C, H, W]."""
    height, width = image.shape[1:]
    padded = np.pad(image, ((0, 0), (PADDING, PADDING), (PADDING, PADDING)), mode="reflect")
    top, left = PADDING + down, PADDING + right
    crop = padded[:, top : top + height, left : left + width]
    crop = crop[:, :, ::-1] if flip else crop
    return np.ascontiguousarray((crop.astype(np.float32) / 255 - mean) / std)


def find_partners(cluster: list[int], source: random.Random) -> list[int | None]:
    """A random other member of the same cluster for each example of a batch, or None if there is none."""
    members: dict[int, list[int]] = {}
    for i, c in enumerate(cluster):
        members.setdefault(c, []).append(i)
    partners: list[int | None] = []
    for i, c in enumerate(cluster):
        others = [j for j in members[c] if j != i]
        partners.append(source.choice(others) if others else None)
    return partners


def mix_one_by_one(
    x: Tensor, excluded: Tensor, partners: list[int | None], weights: list[float]
) -> tuple[Tensor, Tensor]:
    """Mix x [B, ...] and excluded [B, K] image by image; an example without a partner gets an all-zero label."""
    images, labels = [], []
    for i, (j, lam) in enumerate(zip(partners, weights, strict=True)):
        if j is None:
            images.append(x[i])
            labels.append(torch.zeros_like(excluded[i]))
        else:
            images.append(lam * x[i] + (1 - lam) * x[j])
            labels.append(lam * excluded[i] + (1 - lam) * excluded[j])
    return torch.stack(images), torch.stack(labels)


class PlainLoop:
    """The usual training loop, without mixing or with ICM. One pass has ``steps`` steps."""

    def __init__(self, net: Net, task: Task, device: torch.device, icm: bool, steps: int, workers: int) -> None:
        self.device, self.icm = device, icm
        shape = tuple(task.inputs.shape[1:])
        self.model = networks.build(net.model, shape, len(task.classes), max_pool=net.max_pool).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), RATE, weight_decay=DECAY)
        self.random = random.Random(0)
        self.loader = DataLoader(
            PlainImages(task, steps * net.batch),
            batch_size=net.batch,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
            generator=generator(0, "bench plain"),
        )

    def run(self) -> list[float]:
        """One pass over the images; returns the loss of each step."""
        self.model.train()
        return [self.step(*batch) for batch in self._batches()]

    def _batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for x, excluded, cluster in self.loader:
            yield x.to(self.device, non_blocking=True), excluded.to(self.device, non_blocking=True), cluster

    def step(self, x: Tensor, excluded: Tensor, cluster: Tensor) -> float:
        """One update on x [B, C, H, W], excluded [B, K], cluster int [B] -> the loss."""
        if self.icm:
            partners = find_partners(cluster.tolist(), self.random)
            weights = [self.random.betavariate(ALPHA, ALPHA) for _ in partners]
            x, excluded = mix_one_by_one(x, excluded, partners, weights)
        losses = s_nl(self.model(x), excluded)
        loss = losses.sum() / (excluded.sum(1) > 0).sum().clamp_min(1)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.item())


# --- in its own process ----------------------------------------------------------------------------


class PlainProcess:
    """A process that trains with the plain loop on request. Close it after use."""

    def __init__(self, net: Net, device: torch.device, scale: Scale, steps: int, workers: int) -> None:
        sizes = {"images": scale.images, "clusters": scale.clusters, "steps": steps, "workers": workers}
        request = json.dumps({"net": dataclasses.asdict(net), "device": str(device)} | sizes)
        command = [sys.executable, "-m", "benchmarks.plain_loop", request]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)

    def run(self, mix: str) -> list[float]:
        """One pass over the images with ``mix`` none or icm; returns the loss of each step."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{mix}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("The process of the plain loop ended early; its error is above.")
        losses: list[float] = json.loads(answer)
        return losses

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def serve(request: str) -> None:
    """The other side of `PlainProcess`: one pass per line of standard input; losses go to standard output."""
    asked = json.loads(request)
    net, device = Net(**asked["net"]), torch.device(asked["device"])
    torch.backends.cudnn.benchmark = True  # usual, and faster
    task = clustered(synthetic(asked["images"], 1), asked["clusters"])
    loops = {mix: PlainLoop(net, task, device, mix == "icm", asked["steps"], asked["workers"]) for mix in LOOPS}
    for line in sys.stdin:
        losses = loops[line.strip()].run()
        wait(device)
        print(json.dumps(losses), flush=True)


# --- the comparison -------------------------------------------------------------------------------


def reference(setting: Setting) -> list[Row]:
    """This package and the plain loop, without mixing and with ICM, measured alternately."""
    return [row for net in setting.scale.networks for row in _compare(setting, net)]


def _compare(setting: Setting, net: Net) -> list[Row]:
    scale = setting.scale
    few = max(1, scale.reference_steps * net.batch // max(n.batch for n in scale.networks))
    many, workers = scale.speedup * few, min(4, os.cpu_count() or 1)
    log.info("%s: ours and the plain loop (%d workers) alternately", net.label, workers)
    plain = PlainProcess(net, setting.device, scale, few, workers)
    try:
        variants: dict[str, Callable[[], Any]] = {}
        for mix in LOOPS:
            trainer, _ = started(trainer_of(setting, net, mix), setting.device)
            variants[f"plain {mix}"] = functools.partial(plain.run, mix)
            variants[f"ours {mix}"] = repeat(stepper(trainer), many)
        timings = in_turn(variants, scale.reference_rounds, 1, setting.device)
    finally:
        plain.close()
    each = {name: t.per(many if name.startswith("ours") else few) for name, t in timings.items()}
    rows = []
    for name, timing in each.items():
        loop, mix = name.split()
        row = {"loop": loop, "network": net.label, "mix": mix, "batch": net.batch, "workers": workers} | timing.row()
        row |= {"images_per_second": net.batch / timing.median}
        rows.append(row | {"times_plain": times_as_fast(timing, each[f"plain {mix}"])})
    return rows


if __name__ == "__main__":
    serve(sys.argv[1])
