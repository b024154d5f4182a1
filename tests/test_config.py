"""Configurations with sections (Config) and without (PretrainConfig)."""

import contextlib
import dataclasses
import hashlib
import math
import subprocess
import sys
from dataclasses import dataclass
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from complementary import config as config_module
from complementary.augment.auto import POLICIES
from complementary.config import (
    AS_CODED,
    MIXED_WITHIN,
    SGD_LR,
    BaseConfig,
    Config,
    DatasetConfig,
    PretrainConfig,
    TrainingConfig,
    differences,
    load_toml,
    options_of,
    read_toml,
    to_toml,
)
from complementary.encoders.objectives import OBJECTIVES
from complementary.errors import UserError
from complementary.losses import LOSSES
from complementary.mixing import MIXERS, build
from complementary.networks import MODELS

KINDS = [Config, PretrainConfig]
SECTIONS = [f.name for f in dataclasses.fields(Config) if f.name != "seed"]

PRETRAIN = {
    "data": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    "long_tail": st.floats(1, 1e12),
    "head": st.none() | st.integers(1, 10**9),
    "subset": st.sampled_from(["seed", "first"]),
    "encoder": st.sampled_from(sorted(OBJECTIVES)),
    "backbone": st.sampled_from(["auto", "cnn", "resnet18"]),
    "max_pool": st.booleans(),
    "epochs": st.integers(1, 10**6),
    "batch": st.integers(2, 10**6),
    "lr": st.none() | st.floats(1e-12, 1e3),
    "weight_decay": st.floats(0, 1),
    "min_scale": st.floats(1e-6, 1),
    "flip": st.none() | st.booleans(),
    "jitter": st.floats(0, 1),
    "grayscale": st.floats(0, 1),
    "blur": st.floats(0, 1),
    "solarize": st.floats(0, 1),
    "probe_every": st.integers(0, 100),
    "seed": st.integers(-(2**62), 2**62),
}
RUN = {
    "data": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    "long_tail": st.floats(1, 1e12),
    "head": st.none() | st.integers(1, 10**9),
    "holdout": st.floats(0, 0.5),
    "mix": st.sampled_from(sorted(MIXERS)),
    "alpha": st.floats(1e-9, 1e9),
    "loss": st.sampled_from(sorted(LOSSES)),
    "lr": st.floats(1e-12, 10),
    "lam": st.sampled_from(["pair", "batch"]),
    "clean_pass": st.booleans(),
    "flip": st.none() | st.booleans(),
    "seed": st.integers(-(2**62), 2**62),
}
ANY = st.fixed_dictionaries({}, optional=PRETRAIN).map(
    lambda options: PretrainConfig(**options)
) | st.fixed_dictionaries({}, optional=RUN).map(lambda options: Config.of(**options))


def through_toml(config, folder):
    path = folder / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    return read_toml(path, type(config))


# --- options ------------------------------------------------------------------------------------------


def test_config_does_not_import_torch():
    code = "import sys, complementary.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_options_have_unique_names_over_all_sections():
    names = [f.name for section in SECTIONS for f in dataclasses.fields(getattr(Config(), section))]
    assert len(names) == len(set(names))
    config = Config.of(data="mnist", clusters=7, mix="micm", lam="batch", model="mlp", loss="dm", seed=3)
    assert (config.dataset.data, config.cluster.clusters, config.mixing.mix) == ("mnist", 7, "micm")
    assert (config.variant.lam, config.network.model, config.training.loss, config.seed) == ("batch", "mlp", "dm", 3)


def test_options_of_names_every_option_and_its_section():
    assert options_of(PretrainConfig) == {f.name: "" for f in dataclasses.fields(PretrainConfig)}
    homes = options_of(Config)
    assert (homes["seed"], homes["alpha"]) == ("", "mixing")
    for section in SECTIONS:
        assert section not in homes
        found = {f.name for f in dataclasses.fields(getattr(Config(), section))}
        assert {name for name, home in homes.items() if home == section} == found


@pytest.mark.parametrize(
    ("literal", "registry"),
    [
        ("LossName", LOSSES),
        ("MixerName", MIXERS),
        ("ModelName", ("auto", *MODELS)),
        ("PolicyName", POLICIES),
        ("ObjectiveName", OBJECTIVES),
    ],
)
def test_choices_agree_with_the_registries(literal, registry):
    assert set(get_args(getattr(config_module, literal))) == set(registry)


def test_mixed_within_names_every_mixer():
    assert set(MIXED_WITHIN) == set(MIXERS)
    assert {name: Config.of(mix=name).mixed_within for name in MIXERS} == MIXED_WITHIN


@pytest.mark.parametrize("mix", sorted(set(MIXERS) - {"none"}))
def test_mixed_within_says_which_mixers_need_clusters_or_classes(mix):
    mixer, x, excluded = build(mix), torch.randn(4, 3), torch.eye(4)
    mixer(x, excluded, torch.tensor([0, 0, 1, 1]))
    if MIXED_WITHIN[mix] == "nothing":
        mixer(x, excluded, None)
    else:
        with pytest.raises(UserError):
            mixer(x, excluded, None)


@pytest.mark.parametrize("mix", sorted(MIXERS))
def test_as_coded_resets_the_optimizer_and_follows_the_published_mixer(mix):
    coded = Config.of(mix=mix, alpha=0.3).as_coded()
    assert coded.variant.reset_optimizer
    assert coded.variant.clean_pass == (mix != "none")
    assert AS_CODED.get(mix, {}).items() <= coded.flat().items()
    assert coded.as_coded() == coded


def test_as_coded_mixup_with_fwd_keeps_the_own_label():
    assert Config.of(mix="mixup", loss="fwd").as_coded().variant.label_weights == "own"
    assert Config.of(mix="mixup").as_coded().variant.label_weights == "matched"


@given(options=st.fixed_dictionaries({}, optional=PRETRAIN))
def test_with_changes_the_given_options_and_differences_names_them(options):
    base = PretrainConfig()
    changed = base.with_(**options)
    assert changed == PretrainConfig(**options)
    wanted = [f"{n}: {getattr(base, n)} -> {v}" for n, v in options.items() if v != getattr(base, n)]
    assert sorted(differences(base, changed)) == sorted(wanted)
    assert changed.with_(**base.flat()) == base


def test_with_keeps_the_other_options_of_a_section():
    base = Config.of(mix="micm", epochs=7)
    assert differences(base, base.with_(alpha=0.1)) == ["alpha: 0.4 -> 0.1"]


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        (Config, "mix", "foo"),
        (Config, "loss", "ce"),
        (Config, "model", "vit"),
        (Config, "alpha", 0.0),
        (Config, "epochs", 0),
        (Config, "batch", 1),
        (Config, "lr", -1.0),
        (Config, "lr", math.nan),
        (Config, "holdout", 0.9),
        (Config, "long_tail", 0.5),
        (Config, "clusters", -1),
        (Config, "self_training", -1),
        (Config, "constant", 0.0),
        (PretrainConfig, "encoder", "pixels"),
        (PretrainConfig, "backbone", "vit"),
        (PretrainConfig, "epochs", 0),
        (PretrainConfig, "batch", 1),
        (PretrainConfig, "lr", 0.0),
        (PretrainConfig, "lr", math.nan),
        (PretrainConfig, "long_tail", 0.5),
        (PretrainConfig, "head", 0),
        (PretrainConfig, "min_scale", 0.0),
        (PretrainConfig, "blur", 1.5),
        (PretrainConfig, "weight_decay", -1.0),
        (PretrainConfig, "probe_every", -1),
    ],
)
def test_options_with_bad_values_are_named(kind, option, value):
    with pytest.raises(UserError) as caught:
        kind.of(**{option: value})
    assert caught.value.option == option
    assert option in str(caught.value)
    assert str(value) in str(caught.value)


def test_options_of_the_wrong_type_are_named():
    with pytest.raises(UserError, match="int") as caught:
        Config.of(epochs="three")
    assert caught.value.option == "epochs"


@pytest.mark.parametrize("kind", KINDS)
def test_options_that_do_not_exist_are_listed_with_the_choices(kind):
    with pytest.raises(UserError, match=r"'color'.*\bseed\b"):
        kind().with_(color=1)


def test_sections_are_not_options():
    with pytest.raises(UserError, match="'dataset'"):
        Config().with_(dataset=DatasetConfig())


def test_recipe_sets_options_that_others_override():
    config = Config.of(recipe="self-training", epochs=3)
    assert (config.dataset.inputs, config.training.epochs, config.pseudo_labels.self_training) == ("features", 3, 150)
    assert config.with_(epochs=4).pseudo_labels.self_training == 150
    assert Config.of(**config.flat()) == config, "a stored configuration is complete: the recipe changes nothing"


def test_recipe_on_features_sets_weight_decay_and_the_loss_of_long_tails():
    decays = [
        Config.of(recipe="features").training.weight_decay,
        Config.of(long_tail=100, recipe="self-training").training.weight_decay,
        Config.of(long_tail=100, recipe="self-training", student="cnn").training.weight_decay,
        Config.of(recipe="features", weight_decay=0.02).training.weight_decay,
        Config.of(recipe="icm").training.weight_decay,
        Config.of(recipe="self-training", inputs="raw").training.weight_decay,
    ]
    assert decays == [0.01, 0.003, 0.001, 0.02, *[Config().training.weight_decay] * 2]
    for inputs in ("features", "raw"):
        assert Config.of(recipe="features", long_tail=100, inputs=inputs).training.loss == "s-nl-w"
    assert Config.of(recipe="features", labels="setup-3:10:100").training.loss == "s-nl-w"
    options = ({}, {"student": "cnn"}, {"inputs": "raw"})
    tails = [Config.of(long_tail=100, recipe="self-training", **o) for o in options]
    assert [tail.pseudo_labels.neighbors for tail in tails] == [50, 50, 0]
    assert [tail.training.fit for tail in tails] == ["discriminant", "gradient", "gradient"]
    assert Config.of(recipe="self-training").training.fit == "gradient"
    assert Config.of(recipe="features", balanced=True).training.loss == "s-nl-w"
    assert Config.of(recipe="features", balanced=False, long_tail=100).training.loss == "s-exp"
    for fit, decay in (("gradient", 0.001), ("discriminant", 0.003)):
        for recipe in ("features", "self-training"):
            assert Config.of(recipe=recipe, long_tail=100, fit=fit).training.weight_decay == decay
    fits = {tail: Config.of(recipe="features", long_tail=tail).training.fit for tail in (9.9, 10)}
    assert fits == {9.9: "gradient", 10: "discriminant"}
    for options in ({"mix": "mixup"}, {"model": "mlp"}, {"loss": "cpe-t"}):  # no discriminant can be fitted
        assert Config.of(recipe="features", long_tail=100, **options).training.fit == "gradient"
    assert Config.of(recipe="self-training").pseudo_labels.neighbors == 0
    assert Config.of(labels="setup-1:100").is_balanced
    assert not Config.of(labels="setup-2:10").is_balanced


@pytest.mark.parametrize(
    ("given", "changed", "set_by_preset"),
    [
        ({"lr": 0.01}, {"optimizer": "sgd"}, "lr = 0.1"),
        ({"epochs": 3}, {"recipe": "features"}, "epochs = 30"),
        ({"long_tail": 100.0}, {"recipe": "self-training"}, "neighbors = 50"),
        ({"recipe": "features"}, {"recipe": "self-training"}, "self_training = 150"),
    ],
    ids=str,
)
def test_a_copy_changes_only_what_is_named(given, changed, set_by_preset):
    """Otherwise, the result would depend on the order in which options are given."""
    base = Config.of(**given)
    with pytest.raises(UserError, match=set_by_preset) as caught:
        base.with_(**changed)
    assert caught.value.option == next(iter(changed))
    whole = Config.of(**(given | changed))
    assert base.with_(**whole.flat()) == whole
    assert whole.with_(**changed) == whole, "nothing changes"


def test_options_can_be_changed_in_any_order():
    first, second = {"inputs": "raw", "epochs": 7, "lr": 0.02}, {"long_tail": 100.0, "weight_decay": 0.5}
    base = Config.of(recipe="self-training", optimizer="sgd")
    found = [base.with_(**first).with_(**second), base.with_(**second).with_(**first), base.with_(**first, **second)]
    assert found[0] == found[1] == found[2]
    assert len(differences(base, found[0])) == len(first | second)


def test_stored_configuration_without_an_option_has_its_default():
    whole = Config.of(recipe="self-training", long_tail=100)
    assert whole.pseudo_labels.neighbors == 50
    older = {name: value for name, value in whole.flat().items() if name != "neighbors"}
    assert Config.stored(**older) == whole.with_(neighbors=0), "the recipe did not set it then"
    assert Config.stored(**whole.flat()) == whole


def test_hash_of_a_configuration_ignores_new_options_with_their_default():
    assert Config().hash() == hashlib.sha256(b"{}").hexdigest()
    wanted = hashlib.sha256(b'{"epochs": 7, "long_tail": 2.0}').hexdigest()
    assert Config.of(epochs=7, long_tail=2).hash() == wanted


def test_fit_is_auto_only_with_recipe_auto_and_explicit_values_are_kept(tmp_path):
    config = Config.of(recipe="auto")
    assert config.training.fit == "auto"
    assert through_toml(config, tmp_path) == config
    for fit in ("gradient", "neighbors"):
        given = Config.of(recipe="auto", fit=fit)
        assert given.training.fit == fit
        assert through_toml(given, tmp_path) == Config.stored(**given.flat()) == given
    assert Config().training.fit == "gradient"
    assert config.with_(recipe="custom") == Config.of(fit="auto") == Config.of(fit="gradient") == Config()


# --- TOML ---------------------------------------------------------------------------------------------


@given(config=ANY)
def test_toml_restores_every_configuration_and_its_hash(tmp_path_factory, config):
    again = through_toml(config, tmp_path_factory.mktemp("toml"))
    assert again == config
    assert again.hash() == config.hash()
    assert differences(again, config) == []


@pytest.mark.parametrize("kind", KINDS)
def test_toml_may_be_empty_and_leaves_out_none(tmp_path, kind):
    (tmp_path / "empty.toml").write_text("")
    assert read_toml(tmp_path / "empty.toml", kind) == kind()
    assert "None" not in to_toml(kind())
    assert "head" not in to_toml(kind())


def test_toml_without_sections_is_flat():
    text = to_toml(PretrainConfig(lr=0.5))
    assert "[" not in text
    assert {"lr = 0.5", 'subset = "seed"', "max_pool = true"} <= set(text.splitlines())


def test_toml_accepts_an_integer_for_a_float(tmp_path):
    (tmp_path / "c.toml").write_text("[mixing]\nalpha = 1\n")
    assert read_toml(tmp_path / "c.toml", Config).mixing.alpha == 1.0


def test_toml_escapes_strings_and_keeps_extreme_floats(tmp_path):
    @dataclass(frozen=True)
    class Own(BaseConfig):
        name: str = 'a "quoted" \\ name\n\t\x7f \u00e9'
        limit: float = math.inf
        tiny: float = 5e-324

    assert through_toml(Own(), tmp_path) == Own()


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        (PretrainConfig, "epoch = 3", "'epoch'"),
        (PretrainConfig, "[training]\nepochs = 3", "[training]"),
        (PretrainConfig, "[data]\n", "data"),
        (PretrainConfig, "data = ['digits']", "['digits']"),
        (PretrainConfig, "lr = 'fast'", "'fast'"),
        (PretrainConfig, "flip = 1", "flip is 1"),
        (PretrainConfig, "jitter = true", "jitter is True"),
        (PretrainConfig, "epochs = true", "epochs is True"),
        (PretrainConfig, "head = 2.5", "head is 2.5"),
        (PretrainConfig, "subset = 'lots'", "'lots'"),
        (PretrainConfig, "encoder = 'dino'", "'dino'"),
        (PretrainConfig, "jitter = 2", "jitter is 2.0"),
        (PretrainConfig, "jitter = nan", "jitter is nan"),
        (PretrainConfig, "seed = 1\nseed = 2", "not TOML"),
        (PretrainConfig, "seed 1", "not TOML"),
        (Config, "[training]\nepoch = 3", "'epoch' in [training]"),
        (Config, "[mixing]\nepochs = 3", "'epochs' in [mixing]"),
        (Config, "epochs = 3", "'epochs' in [top level]"),
        (Config, "[training]\nepochs = 'three'", "'three'"),
        (Config, "[variant]\nlam = 'both'", "'both'"),
        (Config, "[training\n", "not TOML"),
        (Config, "[[dataset]]\ndata = 'x'", "'dataset' in [top level]"),
        (Config, "[dataset.deeper]\ndata = 'x'", "'deeper' in [dataset]"),
        (Config, "[dataset]\nseed = 1", "'seed' in [dataset]"),
        (Config, "[sauce]\n", "[sauce]"),
    ],
)
def test_toml_with_errors_names_what_was_found(tmp_path, kind, text, found):
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_toml(path, kind)
    assert found in str(caught.value)


def test_toml_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "c.toml").write_bytes(b"data = '\xff'")
    with pytest.raises(UserError, match="not TOML"):
        read_toml(tmp_path / "c.toml", PretrainConfig)


@pytest.mark.parametrize("kind", KINDS)
def test_toml_that_is_missing_is_named(tmp_path, kind):
    with pytest.raises(UserError, match=r"none\.toml"):
        read_toml(tmp_path / "none.toml", kind)


# --- hashes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_hash_has_64_digits_and_depends_on_every_option(kind):
    base = kind()
    assert len(base.hash()) == 64
    assert int(base.hash(), 16) >= 0
    assert base.hash() == kind().hash()
    other = {"data": "x", "long_tail": 2.0, "head": 7, "max_pool": False, "epochs": 3, "flip": True, "seed": 1}
    other |= {"alpha": 0.5, "clean_pass": True, "padding": 0} if kind is Config else {"blur": 0.5}
    hashes = {base.with_(**{name: value}).hash() for name, value in other.items()}
    assert len(hashes | {base.hash()}) == len(other) + 1


@pytest.mark.parametrize("kind", KINDS)
def test_hash_is_the_same_for_an_integer_and_an_equal_float(tmp_path, kind):
    """Otherwise a run could not be resumed from its own TOML file."""
    whole, decimal = (kind().with_(long_tail=ratio) for ratio in (100, 100.0))
    assert whole == decimal
    assert whole.hash() == decimal.hash()
    assert through_toml(whole, tmp_path).hash() == whole.hash()


# --- hostile values -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 10**30},
        {"epochs": 10**4000},
        {"lr": 10**400},
        {"lr": math.inf},
        {"long_tail": math.nan},
        {"alpha": 1e308},
        {"seed": 10**30},
        {"clusters": 10**12},
        {"data": "a\0b"},
        {"encoder": "x" * 5000},
    ],
)
def test_value_out_of_any_range_is_refused(options):
    (name,) = options
    with pytest.raises(UserError) as caught:
        Config.of(**options)
    assert caught.value.option == name


@pytest.mark.parametrize(
    "text",
    [
        "seed = " + "9" * 5000,
        "seed = 0x" + "f" * 5000,
        "epochs = 1" + "0" * 30,
        "[training]\nlr = 1" + "0" * 400,
        "[training]\nlr = inf",
        "seed = " + "[" * 5000 + "]" * 5000,
        "a" + ".a" * 5000 + " = 1",
        '[dataset]\ndata = "a\\u0000b"',
        "seed = 1\0",
        "\udcff",
    ],
)
def test_toml_of_hostile_text_is_refused(tmp_path, text):
    path = tmp_path / "x.toml"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(UserError):
        read_toml(path, Config)
    with contextlib.suppress(UserError):  # a grid may contain anything that is TOML
        load_toml(path, "grid")


def test_toml_of_a_path_with_a_nul_character_is_refused():
    with pytest.raises(UserError):
        read_toml("a\0b.toml", Config)


def test_sgd_has_a_learning_rate_of_its_own():
    assert Config.of(optimizer="sgd").training.lr == SGD_LR
    assert Config.of(optimizer="sgd", lr=1e-3).training.lr == 1e-3
    assert Config.of(optimizer="adam").training.lr == Config().training.lr
    assert Config.of(optimizer="sgd").with_(optimizer="adam", lr=1e-3) == Config()


def test_both_ways_to_build_a_configuration_leave_fit_to_recipe_auto():
    section = TrainingConfig(recipe="auto")
    assert section.fit == Config.of(recipe="auto").training.fit == "auto"
    assert TrainingConfig(recipe="auto", fit="gradient").fit == "gradient"
    assert TrainingConfig().fit == "gradient", "equal runs have equal configurations"
