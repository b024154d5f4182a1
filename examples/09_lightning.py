"""PyTorch Lightning: a loss as a module

Handwritten digits with biased complementary labels, in Lightning's `Trainer` (`pip install lightning`).
`losses.build` returns a module: its matrix moves to the device with the model, and a matrix that is learned (cpe-t)
is among the parameters. Losses that flip gradients (ure-tga) need no manual optimization.
"""

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from complementary import data, labels, losses, transitions

EPOCHS, BATCH = 100, 256


class Classifier(lightning.LightningModule):  # type: ignore[misc, unused-ignore]
    """An MLP that learns from complementary labels."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        self.loss = loss

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """Inputs [B, 64] and labels [B, 10] -> the mean loss."""
        x, excluded = batch
        mean: Tensor = self.loss(self.model(x), excluded).mean()
        return mean

    def test_step(self, batch: list[Tensor]) -> None:
        """Log the accuracy on true labels."""
        x, truth = batch
        self.log("accuracy", (self.model(x).argmax(1) == truth).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=2e-3)


lightning.seed_everything(0, verbose=False)
digits = data.load("digits")
assert digits.train.truth is not None
assert digits.test is not None
assert digits.test.truth is not None
x, x_test = (split.inputs.flatten(1).float() / 255 for split in (digits.train, digits.test))
transition = transitions.biased(10, ratio=3)
excluded = labels.draw(digits.train.truth, transition, seed=0)

module = Classifier(losses.build("fwd", transition))
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "enable_checkpointing": False}
trainer = lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", **quiet)
trainer.fit(module, DataLoader(TensorDataset(x, excluded.float()), BATCH, shuffle=True))
found = trainer.test(module, DataLoader(TensorDataset(x_test, digits.test.truth), 360), verbose=False)
print(f"test accuracy {found[0]['accuracy']:.3f}")

# One biased label for each of 1,437 images is little; the point is that nothing about Lightning had to change.
