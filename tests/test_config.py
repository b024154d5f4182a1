import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from complementary.config import Config, differences, read_toml, to_toml
from complementary.errors import UserError
from complementary.losses import LOSSES
from complementary.mixing import MIXERS


def test_flat_names_reach_every_section_and_are_unique():
    names = [
        f.name for s in dataclasses.fields(Config) if s.name != "seed" for f in dataclasses.fields(s.default_factory)
    ]
    assert len(names) == len(set(names))
    config = Config.of(data="mnist", clusters=7, mix="micm", model="mlp", loss="dm", seed=3)
    assert (config.dataset.data, config.cluster.clusters, config.mixing.mix) == ("mnist", 7, "micm")
    assert (config.network.model, config.training.loss, config.seed) == ("mlp", "dm", 3)


def test_configure_changes_only_what_it_is_told():
    base = Config.of(mix="micm", epochs=7)
    assert differences(base, base.with_(alpha=0.1)) == ["alpha: 0.4 -> 0.1"]


@given(
    data=st.text(max_size=20),
    alpha=st.floats(min_value=1e-9, max_value=1e9),
    lr=st.floats(min_value=1e-12, max_value=10),
    mix=st.sampled_from(sorted(MIXERS)),
    loss=st.sampled_from(sorted(LOSSES)),
    head=st.none() | st.integers(1, 10**9),
    flip=st.none() | st.booleans(),
    seed=st.integers(-(2**62), 2**62),
)
def test_toml_gives_back_every_configuration(tmp_path_factory, **options):
    config = Config.of(**options)
    path = tmp_path_factory.mktemp("toml") / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert read_toml(path, Config) == config
    assert read_toml(path, Config).hash() == config.hash()


def test_hash_sees_every_option():
    base = Config()
    assert base.hash() == Config().hash()
    changed = [
        Config.of(seed=1),
        Config.of(alpha=0.5),
        Config.of(clean_pass=True),
        Config.of(padding=0),
        Config.of(head=9),
    ]
    assert len({c.hash() for c in [base, *changed]}) == 6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mix": "foo"}, "The mixer 'foo' is not known; choose one of: none, mixup, icm"),
        ({"loss": "ce"}, "The loss 'ce' is not known"),
        ({"model": "vit"}, "The model 'vit' is not known"),
        ({"alpha": 0.0}, "alpha is 0.0, but it must be above 0"),
        ({"epochs": 0}, "epochs is 0, but it must be at least 1"),
        ({"batch": 1}, "batch is 1, but it must be at least 2"),
        ({"lr": -1.0}, "lr is -1.0, but it must be above 0"),
        ({"holdout": 0.9}, "holdout is 0.9, but it must be between 0 and 0.5"),
        ({"long_tail": 0.5}, "long-tail is 0.5, but it must be at least 1"),
        ({"clusters": -1}, "clusters is -1"),
        ({"colour": 1}, "The option 'colour' is not known"),
        ({"lr": float("nan")}, "lr is nan, but it must be above 0"),
    ],
)
def test_bad_options_are_named(options, said):
    with pytest.raises(UserError, match=r"option|mixer|loss|model") as caught:
        Config.of(**options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[training]\nepoch = 3", "sets 'epoch' in [training], which is not an option there"),
        ("[mixing]\nepochs = 3", "sets 'epochs' in [mixing]"),
        ("epochs = 3", "sets 'epochs' in [top level]"),
        ("[training]\nepochs = 'three'", "epochs is 'three', but it must be of type int"),
        ("[training]\nepochs = true", "epochs is True, but it must be of type int"),
        ("[mixing]\nlam = 'both'", "'both' is not known; choose one of: pair, batch"),
        ("[training\n", "is not TOML"),
    ],
)
def test_bad_toml_is_one_sentence(tmp_path, text, said):
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_toml(path, Config)
    assert said in str(caught.value)


def test_missing_toml_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_toml(tmp_path / "none.toml", Config)


def test_an_integer_is_welcome_where_a_float_is_wanted(tmp_path):
    (tmp_path / "c.toml").write_text("[mixing]\nalpha = 1\n")
    assert read_toml(tmp_path / "c.toml", Config).mixing.alpha == 1.0
