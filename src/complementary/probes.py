"""How good are features? kNN and linear probes against the true labels: oracle figures, for reports only."""

import torch
import torch.nn.functional as F
from torch import Tensor

from complementary.rng import address


@torch.no_grad()
def knn_accuracy(
    train: Tensor, train_truth: Tensor, test: Tensor, test_truth: Tensor, k: int = 200, temperature: float = 0.1
) -> float:
    """Weighted k-nearest-neighbour accuracy by cosine similarity, as usual for self-supervised encoders.

    train [N, D], test [M, D]: unit vectors; truth int [N], [M]. Neighbours vote with exp(similarity / temperature).
    """
    classes = int(train_truth.max()) + 1
    votes_of = F.one_hot(train_truth, classes).float()
    right = 0
    for part, truth in zip(test.split(1024), test_truth.split(1024), strict=True):
        similarity, nearest = (part @ train.T).topk(min(k, len(train)), dim=1)
        votes = (votes_of[nearest] * (similarity / temperature).exp()[..., None]).sum(1)
        right += int((votes.argmax(1) == truth).sum())
    return right / len(test)


def linear_accuracy(
    train: Tensor,
    train_truth: Tensor,
    test: Tensor,
    test_truth: Tensor,
    epochs: int = 100,
    batch: int = 1024,
    seed: int = 0,
) -> float:
    """Accuracy of one linear layer trained on frozen features with the true labels.

    train [N, D], test [M, D], truth int [N], [M]. Features are standardised; Adam 1e-2 with a cosine, no decay.
    """
    mean, std = train.mean(0), train.std(0).clamp_min(1e-6)
    x, held = (train - mean) / std, (test - mean) / std
    classes = int(train_truth.max()) + 1
    source = torch.Generator(device="cpu").manual_seed(address(seed, "probe"))
    layer = torch.nn.utils.skip_init(torch.nn.Linear, x.shape[1], classes, device=x.device)  # no global draw
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    optimiser = torch.optim.Adam(layer.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        for index in torch.randperm(len(x), generator=source).to(x.device).split(batch):
            optimiser.zero_grad()
            F.cross_entropy(layer(x[index]), train_truth[index]).backward()
            optimiser.step()
        schedule.step()
    with torch.no_grad():
        return float((layer(held).argmax(1) == test_truth).float().mean())
