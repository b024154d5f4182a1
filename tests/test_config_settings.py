"""BaseConfig, with sections (Config) and without (PretrainConfig)."""

import dataclasses
import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from complementary.config import (
    BaseConfig,
    Config,
    DatasetConfig,
    PretrainConfig,
    differences,
    options_of,
    read_toml,
    replace,
    require,
    to_toml,
)
from complementary.encoders.objectives import OBJECTIVES
from complementary.errors import UserError

KINDS = [Config, PretrainConfig]


def through_toml(settings, folder):
    path = folder / "config.toml"
    path.write_text(to_toml(settings), encoding="utf-8")
    return read_toml(path, type(settings))


PRETRAIN = {
    "data": st.text(max_size=20),
    "long_tail": st.floats(1, 1e12),
    "head": st.none() | st.integers(1, 10**9),
    "draws": st.sampled_from(["addressed", "paper"]),
    "encoder": st.sampled_from(sorted(OBJECTIVES)),
    "body": st.sampled_from(["auto", "cnn", "resnet18"]),
    "max_pool": st.booleans(),
    "epochs": st.integers(1, 10**6),
    "batch": st.integers(2, 10**6),
    "lr": st.none() | st.floats(1e-12, 1e3),
    "weight_decay": st.floats(0, 1),
    "smallest": st.floats(1e-6, 1),
    "flip": st.none() | st.booleans(),
    "jitter": st.floats(0, 1),
    "grey": st.floats(0, 1),
    "blur": st.floats(0, 1),
    "solarise": st.floats(0, 1),
    "probe_every": st.integers(0, 100),
    "seed": st.integers(-(2**62), 2**62),
}
RUN = {
    "data": st.text(max_size=20),
    "long_tail": st.floats(1, 1e12),
    "head": st.none() | st.integers(1, 10**9),
    "holdout": st.floats(0, 0.5),
    "alpha": st.floats(1e-9, 1e9),
    "lam": st.sampled_from(["pair", "batch"]),
    "clean_pass": st.booleans(),
    "flip": st.none() | st.booleans(),
    "seed": st.integers(-(2**62), 2**62),
}
ANY = st.fixed_dictionaries({}, optional=PRETRAIN).map(
    lambda options: PretrainConfig(**options)
) | st.fixed_dictionaries({}, optional=RUN).map(lambda options: Config.of(**options))


@given(settings=ANY)
def test_toml_gives_back_every_configuration_and_its_hash(tmp_path_factory, settings):
    again = through_toml(settings, tmp_path_factory.mktemp("toml"))
    assert again == settings
    assert again.hash() == settings.hash()
    assert differences(again, settings) == []


@given(options=st.fixed_dictionaries({}, optional=PRETRAIN))
def test_replace_changes_what_it_is_told_and_differences_name_it(options):
    base = PretrainConfig()
    changed = replace(base, **options)
    assert changed == PretrainConfig(**options)
    wanted = [f"{n}: {getattr(base, n)} -> {v}" for n, v in options.items() if v != getattr(base, n)]
    assert sorted(differences(base, changed)) == sorted(wanted)
    assert replace(changed, **vars(base)) == base


def test_options_of_names_every_option_and_its_section():
    assert options_of(PretrainConfig) == {f.name: "" for f in dataclasses.fields(PretrainConfig)}
    homes = options_of(Config)
    assert homes["seed"] == ""
    assert homes["alpha"] == "mixing"
    for section in ("source", "grouping", "mixing", "network", "training"):
        assert section not in homes
        fields = {f.name for f in dataclasses.fields(getattr(Config(), section))}
        assert {name for name, home in homes.items() if home == section} == fields


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_options_are_named_with_the_choices(kind):
    with pytest.raises(UserError, match=r"The option 'colour' is not known; choose one of: .*\bseed\b"):
        replace(kind(), colour=1)


def test_a_section_is_not_an_option():
    with pytest.raises(UserError, match="'source' is not known"):
        replace(Config(), source=DatasetConfig())


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_need_no_text_and_none_is_left_out(tmp_path, kind):
    (tmp_path / "empty.toml").write_text("")
    assert read_toml(tmp_path / "empty.toml", kind) == kind()
    assert "None" not in to_toml(kind())
    assert "head" not in to_toml(kind())


def test_without_sections_everything_is_at_the_top_level():
    text = to_toml(PretrainConfig(lr=0.5))
    assert "[" not in text
    assert "lr = 0.5\n" in text
    assert 'draws = "addressed"\n' in text
    assert "max_pool = true\n" in text


# --- hashes -------------------------------------------------------------------------------------------


def test_an_option_that_came_later_leaves_the_names_of_earlier_runs_as_they_were():
    """The hash of the defaults, as it was before --inputs. If this fails, all stored sweeps would be run again."""
    assert Config.of().hash()[:16] == "f33a18b22f179c1b"
    assert Config.of(inputs="raw").hash() == Config.of().hash() != Config.of(inputs="features").hash()


@pytest.mark.parametrize("kind", KINDS)
def test_the_hash_is_64_digits_and_sees_every_option(kind):
    base = kind()
    assert len(base.hash()) == 64
    assert int(base.hash(), 16) >= 0
    assert base.hash() == kind().hash()
    other = {"data": "x", "long_tail": 2.0, "head": 7, "max_pool": False, "epochs": 3, "flip": True, "seed": 1}
    hashes = {replace(base, **{name: value}).hash() for name, value in other.items()}
    assert len(hashes | {base.hash()}) == len(other) + 1


@pytest.mark.parametrize("kind", KINDS)
def test_equal_configurations_have_one_hash(tmp_path, kind):
    """A whole number where a float is meant is the same setting; a run of it is found and resumed by its TOML."""
    whole, decimal = (replace(kind(), long_tail=ratio) for ratio in (100, 100.0))
    assert whole == decimal
    assert whole.hash() == decimal.hash()
    assert through_toml(whole, tmp_path).hash() == whole.hash()


# --- bad text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (PretrainConfig, "epoch = 3", "sets 'epoch' in [top level], which is not an option there"),
        (PretrainConfig, "[training]\nepochs = 3", "[training]"),
        (PretrainConfig, "[data]\n", "data"),
        (PretrainConfig, "[nonsense]\n", "nonsense"),
        (PretrainConfig, "data = ['digits']", "data is ['digits'], but it must be of type str"),
        (PretrainConfig, "lr = 'fast'", "lr is 'fast', but it must be of type float"),
        (PretrainConfig, "flip = 1", "flip is 1, but it must be of type bool"),
        (PretrainConfig, "jitter = true", "jitter is True, but it must be of type float"),
        (PretrainConfig, "epochs = true", "epochs is True, but it must be of type int"),
        (PretrainConfig, "head = 2.5", "head is 2.5, but it must be of type int"),
        (PretrainConfig, "draws = 'lots'", "'lots' is not known; choose one of: addressed, paper"),
        (PretrainConfig, "encoder = 'dino'", "The encoder 'dino' is not known"),
        (PretrainConfig, "jitter = 2", "jitter is 2.0, but it must be a probability"),
        (PretrainConfig, "jitter = nan", "jitter is nan"),
        (PretrainConfig, "seed = 1\nseed = 2", "is not TOML"),
        (PretrainConfig, "seed 1", "is not TOML"),
        (Config, "[[source]]\ndata = 'x'", "sets 'source' in [top level]"),
        (Config, "[source.deeper]\ndata = 'x'", "sets 'deeper' in [source]"),
        (Config, "[source]\nseed = 1", "sets 'seed' in [source]"),
        (Config, "[sauce]\n", "sauce"),
    ],
)
def test_bad_toml_is_one_sentence(tmp_path, kind, text, said):
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_toml(path, kind)
    assert said in str(caught.value)


def test_bytes_that_are_not_text_are_one_sentence(tmp_path):
    (tmp_path / "c.toml").write_bytes(b"data = '\xff'")
    with pytest.raises(UserError, match="is not TOML"):
        read_toml(tmp_path / "c.toml", PretrainConfig)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_file_is_one_sentence(tmp_path, kind):
    with pytest.raises(UserError, match=r"none\.toml cannot be read"):
        read_toml(tmp_path / "none.toml", kind)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"encoder": "pixels"}, "The encoder 'pixels' is not known; choose one of: simsiam, byol, mocov3"),
        ({"body": "vit"}, "The body 'vit' is not known; choose one of: auto, cnn, resnet18"),
        ({"epochs": 0}, "epochs is 0, but it must be at least 1"),
        ({"batch": 1}, "batch is 1, but it must be at least 2"),
        ({"lr": 0.0}, "lr is 0.0, but it must be above 0"),
        ({"lr": math.nan}, "lr is nan"),
        ({"long_tail": 0.5}, "long-tail is 0.5, but it must be at least 1"),
        ({"head": 0}, "head is 0, but it must be at least 1"),
        ({"smallest": 0.0}, "smallest is 0.0, but it must be above 0 and at most 1"),
        ({"blur": 1.5}, "blur is 1.5, but it must be a probability, 0 to 1"),
        ({"weight_decay": -1.0}, "weight-decay is -1.0, but it must be 0 or more"),
        ({"probe_every": -1}, "probe-every is -1, but it must be 0"),
    ],
)
def test_bad_options_of_an_encoder_are_named(options, said):
    with pytest.raises(UserError) as caught:
        PretrainConfig(**options)
    assert said in str(caught.value)


def test_require_speaks_only_where_it_does_not_hold():
    require(True, "x", 1, "anything")
    with pytest.raises(UserError, match=r"The option x is 1, but it must be 2\."):
        require(False, "x", 1, "2")


def test_settings_of_ones_own_need_only_be_a_dataclass(tmp_path):
    @dataclass(frozen=True)
    class Own(BaseConfig):
        name: str = 'a "quoted" \\ name\n\t\x7f \u00e9'
        limit: float = math.inf
        tiny: float = 5e-324

    assert through_toml(Own(), tmp_path) == Own()
