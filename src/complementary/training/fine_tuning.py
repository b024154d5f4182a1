"""From an encoder and a layer on its features to one network, and learning rates that suit its weights."""

import math

import torch
from torch import Tensor, nn

from complementary import networks
from complementary.augment.crop import normalize
from complementary.encoders.frozen import FrozenEncoder
from complementary.engine.backend import no_capture
from complementary.errors import UserError
from complementary.training.task import Task

EFFECTIVE_LR, HIGHEST_LR = 0.4, 0.03  # learning rate divided by the squared norm of a filter; see `suitable_lr`
MLP_STEP = 2.75  # learning rate of an MLP times its inputs over batch ** .6, at most; see `highest_mlp_lr`


def fine_tuned_network(
    encoder: FrozenEncoder, layer: networks.Network, features: Task, images: Task, device: torch.device
) -> networks.Network:
    """The encoder and a linear layer on its standardized features as one network.

    The features that the layer was trained on have norm 1. The network does without this normalization: the layer is
    divided by a typical norm instead.

    Args:
        encoder: The encoder.
        layer: The linear layer.
        features: The task with features as inputs.
        images: The task with images as inputs.
        device: Where the norms of features are computed.
    """
    if layer.kind != "linear":
        raise UserError(
            f"An encoder is fine-tuned from a linear layer on its features, but the model is {layer.kind}; use linear "
            "or auto.",
            "model",
        )
    mean, std, backbone = features.mean.cpu(), features.std.cpu(), encoder.backbone
    network = networks.build(backbone.kind, encoder.shape, len(images.classes), max_pool=backbone.max_pool)
    network.load_state_dict(network.state_dict() | backbone.state_dict())
    weight = layer.fc.weight.detach().cpu() / std
    bias = layer.fc.bias.detach().cpu() - weight @ mean
    few = images.train.take(slice(None, None, max(1, len(images.train) // 1024))).whole()
    norms = _feature_norms(network.to(device), normalize(few, images.mean, images.std).to(device))
    network.cpu().fc.load_state_dict({"weight": weight * float((1 / norms).mean()), "bias": bias})
    return network


@torch.no_grad()
def _feature_norms(network: networks.Network, x: Tensor) -> Tensor:
    """Norms of the features of normalized images [N, C, H, W] -> [N]."""
    with no_capture():
        return torch.cat([network.eval().features(part).norm(dim=1) for part in x.split(256)])


def suitable_lr(network: nn.Module) -> float:
    """A learning rate that fits the weights of a network.

    A filter before a batch norm turns by about lr / |w|^2 times its gradient at norm 1, so the rate must be in
    proportion to |w|^2. Weight decay makes the filters of a long pretraining small: .015 after 800 epochs of SimSiam,
    where .006 is right and .06 destroys the encoder, against 2 in a new ResNet-18.
    """
    norms = [
        module.weight.detach().square().flatten(1).sum(1).mean()
        for module in network.modules()
        if isinstance(module, nn.Conv2d)
    ]
    return HIGHEST_LR if not norms else min(HIGHEST_LR, EFFECTIVE_LR * float(torch.stack(norms).median()))


def highest_mlp_lr(network: nn.Module, batch: int) -> float:
    """The highest learning rate at which the self-training of an MLP is stable; infinite for other networks.

    A step changes what a hidden unit says about an input x by the learning rate times x . x, which is the number of
    features if these are standardized. In a larger batch, steps for single examples are smaller. With random labels,
    training diverged where the learning rate times the number of features was 20 to 25 in batches of 16, and 100 to 200
    in batches of 128 (docs/notes/self-training.md, Learning rate).

    Args:
        network: The network.
        batch: Batch size.
    """
    return MLP_STEP * batch**0.6 / network.hidden.in_features if isinstance(network, networks.MLP) else math.inf
