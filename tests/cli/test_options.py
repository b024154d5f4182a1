"""Options: where the configuration comes from, what help shows, how errors are shown."""

import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from complementary.cli.options import RunOptions, flag_of, help_texts, parse, parse_run
from complementary.cli.pretrain import Pretrain
from complementary.cli.train import Train
from complementary.config import Config, PretrainConfig, options_of, to_toml
from complementary.errors import UserError

FLAG = re.compile(r"^\W{0,4}(?:-h, )?(--[a-z][a-z-]*)", re.MULTILINE)  # tyro's borders depend on the terminal


@pytest.fixture
def file(tmp_path):
    """The configuration of an earlier run of ``cll train``."""
    path = tmp_path / "earlier.toml"
    path.write_text(to_toml(Config.of(alpha=0.7, clusters=30, seed=5, flip=True)))
    return path


@pytest.fixture
def folder(tmp_path):
    """A folder with a run in it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(to_toml(Config.of(alpha=0.9, epochs=7)))
    return tmp_path / "run"


def train(*arguments, **preset):
    return parse_run(Train, Config, [str(a) for a in arguments], "cll train", **preset)


# --- where the configuration comes from ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "base"),
    [
        ([], "defaults"),
        (["--seed", "0"], "defaults"),
        (["--config", "{file}"], "file"),
        (["--config={file}"], "file"),
        (["--lr", "0.001", "--config", "{file}", "--batch", "256"], "file"),
        (["--out", "{folder}"], "defaults"),
        (["--resume", "--out", "{folder}"], "folder"),
        (["--out", "{folder}", "--resume"], "folder"),
        (["--out={folder}", "--seed", "0", "--resume"], "folder"),
        (["--resume", "--out", "{folder}/nowhere"], "defaults"),
        (["--resume", "--out", "{folder}", "--config", "{file}"], "file"),
        (["--no-resume", "--out", "{folder}"], "defaults"),
    ],
    ids=str,
)
def test_configuration_starts_from_config_or_the_folder_to_resume(file, folder, arguments, base):
    wanted = {
        "defaults": Config(),
        "file": Config.of(alpha=0.7, clusters=30, seed=5, flip=True),
        "folder": Config.of(alpha=0.9, epochs=7),
    }
    assert train(*(a.format(file=file, folder=folder) for a in arguments))[1] == wanted[base]


def test_options_override_the_file_and_can_restore_a_default(file):
    written = ["--config", file]
    assert train(*written, "--alpha", 0.1)[1] == Config.of(alpha=0.1, clusters=30, seed=5, flip=True)
    back = train(*written, "--flip", "None", "--alpha", 0.4, "--clusters", 50, "--seed", 0)[1]
    assert back == Config()


def test_options_override_a_preset_and_a_preset_overrides_the_file(file):
    assert train("--config", file, alpha=0.2, lam="batch")[1].flat()["alpha"] == 0.2
    config = train("--config", file, "--alpha", 0.1, alpha=0.2, lam="batch")[1]
    assert (config.mixing.alpha, config.variant.lam, config.seed) == (0.1, "batch", 5)


def test_run_options_have_defaults(tmp_path):
    options, _ = train()
    assert (options.out, options.resume, options.device, options.checkpoint_seconds) == (None, False, "auto", 30.0)
    options, config = train("--out", tmp_path, "--mix", "micm", "--seed", 2, "--device", "cpu")
    assert config == Config.of(mix="micm", seed=2)
    assert (options.out, options.device) == (tmp_path, "cpu")
    assert train("--out", "None")[0].out is None


def test_config_of_another_kind_is_refused(file, tmp_path):
    own = tmp_path / "pretrain.toml"
    own.write_text(to_toml(PretrainConfig(encoder="byol", epochs=3, lr=0.5)))
    arguments = ["--config", str(own), "--lr", "None"]
    options, config = parse_run(Pretrain, PretrainConfig, arguments, "cll pretrain")
    assert config == PretrainConfig(encoder="byol", epochs=3)
    assert options.show_views is None
    with pytest.raises(UserError, match="section"):
        parse_run(Pretrain, PretrainConfig, ["--config", str(file)], "cll pretrain")
    with pytest.raises(UserError, match="nowhere"):
        train("--config", tmp_path / "nowhere.toml")


def test_abbreviated_options_are_refused(file, capsys):
    with pytest.raises(SystemExit):
        train("--conf", file)
    assert "--config" in capsys.readouterr().err


# --- the folder of a run ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "folder"),
    [("digits", "digits-icm-0"), ("pets.v2", "pets.v2-icm-0")]
    + [(path, "x.npz-icm-0") for path in ("x.npz", "sets/x.npz", "../x.npz", "/data/x.npz")],
)
def test_folder_is_under_runs_without_out(data, folder):
    assert RunOptions().folder(data, "icm", 0) == Path("runs") / folder
    assert RunOptions(out=Path("x")).folder(data, "icm", 0) == Path("x")


@pytest.mark.parametrize("command", ["train", "pretrain"])
def test_resume_without_a_run_is_refused_and_starts_nothing(cll, tmp_path, command):
    status, _, error = cll(command, "--resume", "--out", tmp_path / "none")
    assert status == 2
    assert "--resume" in error
    assert not (tmp_path / "none").exists()


# --- help ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["train", "pretrain"])
def test_help_shows_at_most_30_options(cll, command):
    status, out, error = cll(command, "--help")
    assert (status, error) == (0, "")
    assert 10 < len(FLAG.findall(out)) <= 30
    assert "--help-all" in out


@pytest.mark.parametrize(
    ("command", "config", "options"), [("train", Config, Train), ("pretrain", PretrainConfig, Pretrain)]
)
def test_help_all_shows_every_option(cll, command, config, options):
    status, out, _ = cll(command, "--help-all")
    assert status == 0
    names = {f.name for f in fields(options)} - {f.name for f in fields(config)} | set(options_of(config))
    names = {"as_coded" if name == "published_code" else name for name in names}
    assert {f"--{name.replace('_', '-')}" for name in names} | {"--help"} == set(FLAG.findall(out))


def test_help_has_a_text_for_every_option():
    kinds = [Train, Pretrain, *(type(getattr(Config(), name)) for name in set(options_of(Config).values()) - {""})]
    for kind in kinds:
        options = [f.name for f in fields(kind) if not is_dataclass(f.type)]
        assert {name for name in options if not help_texts(kind).get(name)} == set()


def test_hidden_options_work_on_the_command_line():
    config = train("--lam", "batch", "--reset-optimizer", "--max-pool")[1]
    assert config == Config.of(lam="batch", reset_optimizer=True)


@pytest.mark.parametrize("command", ["report", "train", "cluster", "predict"])
def test_help_shows_optional_paths_as_path(cll, command):
    status, out, _ = cll(*command.split(), "--help")
    assert status == 0
    assert " PATH " in out
    assert "{None}|PATH" not in out


# --- errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "arguments", "found", "flag"),
    [
        ("train", ["--epochs", 0], "epochs is 0", "--epochs"),
        ("train", ["--holdout", 3], "holdout is 3.0", "--holdout"),
        ("train", ["--long-tail", 0.5], "long_tail is 0.5", "--long-tail"),
        ("pretrain", ["--epochs", 0], "epochs is 0", "--epochs"),
        ("cluster", ["--clusters", -1], "clusters is -1", "--clusters"),
    ],
)
def test_errors_of_the_configuration_are_one_line_with_the_flag(cll, command, arguments, found, flag):
    status, out, error = cll(command, *arguments)
    assert (status, out) == (2, "")
    assert re.fullmatch(rf"cll {command}: .*{found}.* \({flag}\)\n", error)


def test_errors_of_the_parser_are_shown_as_they_are(cll):
    for arguments, said in (
        (["--epochs", "two"], "--epochs"),
        (["--epoks", 2], "Perhaps you meant"),
        (["--mix", "x"], "icm"),
    ):
        status, out, error = cll("train", *arguments)
        assert (status, out) == (2, "")
        assert said in error


def test_flag_of_knows_the_options_of_the_last_command():
    train()
    assert (flag_of("long_tail"), flag_of("out"), flag_of("checkpoint_seconds")) == (
        "--long-tail",
        "--out",
        "--checkpoint-seconds",
    )
    assert (flag_of("dataset"), flag_of("color"), flag_of(None)) == (None, None, None)
    parse(RunOptions, [], "cll x")
    assert flag_of("long_tail") is None
