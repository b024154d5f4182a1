"""From an encoder and a layer to one network, and learning rates that suit its weights."""

import math

import pytest
import torch

from complementary import networks
from complementary.config import Config
from complementary.encoders.backbone import load_weights
from complementary.errors import UserError
from complementary.training.fine_tuning import highest_mlp_lr, suitable_lr
from complementary.training.run import build_trainer, run
from complementary.training.self_training import NEW_MLP_LR

SELF_TRAINING = Config.of(inputs="features", encoder="random", mix="none", epochs=2, head=36, batch=32, self_training=2)


def test_self_training_of_an_encoder_needs_a_linear_layer():
    with pytest.raises(UserError, match="linear") as caught:
        build_trainer(SELF_TRAINING.with_(model="mlp"), "cpu")
    assert caught.value.option == "model"


def test_fine_tuned_network_can_be_used_as_an_encoder(tmp_path):
    run(SELF_TRAINING, tmp_path / "run", device="cpu")
    found = load_weights(tmp_path / "run" / "last.safetensors", (1, 8, 8))
    assert found.kind == "cnn"


def test_suitable_learning_rate_follows_the_norm_of_the_filters():
    network = networks.build("cnn", (3, 32, 32), 10)
    assert suitable_lr(network) == pytest.approx(0.03), "the filters of a new network are large"
    with torch.no_grad():
        for conv in network.convs:
            conv.weight.mul_((0.015 / conv.weight.square().flatten(1).sum(1)).sqrt()[:, None, None, None])
    assert suitable_lr(network) == pytest.approx(0.4 * 0.015, rel=1e-5)
    assert suitable_lr(networks.build("mlp", (4,), 3)) == 0.03


def test_highest_learning_rate_of_an_mlp_falls_with_its_inputs_and_leaves_measured_settings_alone():
    wide, narrow = (networks.build("mlp", (features,), 3) for features in (6000, 512))
    assert highest_mlp_lr(wide, 16) == pytest.approx(highest_mlp_lr(narrow, 16) * 512 / 6000)
    assert highest_mlp_lr(narrow, 512) > NEW_MLP_LR, "features of ResNet-18"
    assert highest_mlp_lr(networks.build("mlp", (1152,), 10), 512) > NEW_MLP_LR, "features of patches"
    for other in (networks.build("linear", (6000,), 3), networks.build("cnn", (3, 32, 32), 3)):
        assert highest_mlp_lr(other, 16) == math.inf
