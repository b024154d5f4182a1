"""Several networks as one: their convolutions as the groups of wider ones. Is that faster than one after the other?

What it would be good for: many small trainings on one card. They run in streams of their own instead (`pack`), unless
this turns out to be faster (docs/speed.md).
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from complementary.bench_setting import Net, Row, Setting, by_events, in_turn, random_batch, times_as_fast
from complementary.bench_training import forward_backward, replayed, trainer_of
from complementary.networks import Network


class Stacked(nn.Module):
    """Networks of one kind side by side: pictures [B, N C, H, W], each network's own channels -> logits [B, N, K]."""

    def __init__(self, networks: Sequence[Network]) -> None:
        super().__init__()
        self.body = copy.deepcopy(networks[0])
        del self.body.fc
        for name, module in list(self.body.named_modules()):
            if isinstance(module, nn.Conv2d | nn.BatchNorm2d):
                parent, _, last = name.rpartition(".")
                setattr(self.body.get_submodule(parent), last, _wider([net.get_submodule(name) for net in networks]))
        self.weight = nn.Parameter(torch.stack([net.fc.weight.detach() for net in networks]))
        self.bias = nn.Parameter(torch.stack([net.fc.bias.detach() for net in networks]))

    def forward(self, x: Tensor) -> Tensor:
        """[B, N C, H, W] -> [B, N, K]."""
        features = self.body.features(x).unflatten(1, (len(self.weight), -1))
        return torch.einsum("bnd,nkd->bnk", features, self.weight) + self.bias


def _wider(modules: Sequence[Any]) -> nn.Module:
    """Convolutions as groups of one, or batch norms over all their channels, with the same weights and statistics."""
    first, count = modules[0], len(modules)
    wide: nn.Module
    if isinstance(first, nn.Conv2d):
        channels, size = (count * first.in_channels, count * first.out_channels), first.kernel_size
        wide = nn.Conv2d(*channels, size, first.stride, first.padding, groups=count, bias=False)  # type: ignore[arg-type]
    else:
        wide = nn.BatchNorm2d(count * first.num_features)
    parts = [module.state_dict() for module in modules]
    join = {name: torch.cat([part[name] for part in parts]) for name, value in parts[0].items() if value.ndim}
    wide.to(first.weight.device, first.weight.dtype).load_state_dict(parts[0] | join)
    return wide


def stacking(setting: Setting) -> list[Row]:
    """Forward and backward pass of several networks: stacked, and one after the other, in turn."""
    counts = [count for count in setting.scale.packs if count in (2, 4)] or [2]
    return [row for count in counts for row in _compare(setting, setting.scale.networks[0], count)]


def _compare(setting: Setting, net: Net, count: int) -> list[Row]:
    setting.say(f"{net.label}: {count} networks stacked, and one after the other")
    trainers = [trainer_of(setting, net, "none", seed)() for seed in range(count)]
    index = random_batch(len(setting.task.inputs), net.batch, setting.device)
    batches = [trainer.load(index, trainer.random) for trainer in trainers]
    model = Stacked([trainer.model for trainer in trainers])
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    wide = torch.cat([x for x, _ in batches], 1).contiguous(memory_format=torch.channels_last)
    excluded = torch.stack([labels for _, labels in batches], 1)

    def apart(index: Tensor, random: torch.Generator) -> Tensor:
        pairs = zip(trainers, batches, strict=True)
        return torch.stack([forward_backward(trainer, trainer.model, *batch) for trainer, batch in pairs]).sum()

    def stacked(index: Tensor, random: torch.Generator) -> Tensor:
        return forward_backward(trainers[0], model, wide, excluded)

    parts = {"apart": apart, "stacked": stacked}
    calls = {how: replayed(setting, part, index, number) for number, (how, part) in enumerate(parts.items())}
    timings = in_turn(calls, setting.scale.stage_rounds, setting.scale.stage_calls, setting.device, by_events)
    rows = []
    for how, timing in timings.items():
        row = {"network": net.label, "batch": net.batch, "trainings": count, "how": how} | timing.row()
        row |= {"images_per_second": count * net.batch / timing.median}
        rows.append(row | {"times_apart": times_as_fast(timing, timings["apart"])})
    return rows
