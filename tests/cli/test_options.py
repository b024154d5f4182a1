import functools
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from complementary.cli import options as common
from complementary.cli.options import _base, default_folder, epochs_bar, parse
from complementary.cli.pretrain import Pretrain
from complementary.cli.train import Train
from complementary.config import Config, PretrainConfig, to_toml
from complementary.errors import UserError
from complementary.training.run import run


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


def train(*arguments):
    return parse(Train, Config, [str(a) for a in arguments], "cll train")


# --- where the configuration comes from ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ([], None),
        (["--seed", "3"], None),
        (["--config", "{file}"], "{file}"),
        (["--config={file}"], "{file}"),
        (["--seed", "3", "--config", "{file}", "--alpha", "1"], "{file}"),
        (["--config", "a.toml", "--config", "{file}"], "{file}"),
        (["--out", "{folder}"], None),
        (["--resume"], None),
        (["--resume", "--out", "{folder}"], "{folder}/config.toml"),
        (["--out", "{folder}", "--resume"], "{folder}/config.toml"),
        (["--out={folder}", "--seed", "1", "--resume"], "{folder}/config.toml"),
        (["--resume", "--out", "{folder}/nowhere"], None),
        (["--resume", "--out", "{folder}", "--config", "{file}"], "{file}"),
        (["--no-resume", "--out", "{folder}"], None),
    ],
    ids=str,
)
def test_the_base_is_that_of_config_or_of_a_folder_to_resume(file, folder, arguments, found):
    places = {"file": file, "folder": folder}
    base = _base([a.format(**places) for a in arguments])
    assert base == (None if found is None else Path(found.format(**places)))


def test_without_a_base_the_defaults_count(tmp_path):
    options, config = train()
    assert config == Config()
    assert (options.out, options.resume, options.device, options.checkpoint_seconds) == (None, False, "auto", 30.0)
    options, config = train("--out", tmp_path, "--mix", "micm", "--seed", 2, "--device", "cpu")
    assert config == Config.of(mix="micm", seed=2)
    assert (options.out, options.device) == (tmp_path, "cpu")


@pytest.mark.parametrize("written", [["--config", "{}"], ["--config={}"]], ids=["apart", "with ="])
def test_options_override_the_file_wherever_they_stand(file, written):
    written = [part.format(file) for part in written]
    assert train(*written)[1] == Config.of(alpha=0.7, clusters=30, seed=5, flip=True)
    wanted = Config.of(alpha=0.7, clusters=40, seed=5, flip=True)
    assert train(*written, "--clusters", 40)[1] == train("--clusters", 40, *written)[1] == wanted
    back = train(*written, "--flip", "None", "--alpha", 0.4, "--clusters", 50, "--seed", 0)[1]
    assert back == Config(), "an option can also go back to its default"


def test_a_resumed_folder_needs_no_options_and_options_still_override(file, folder):
    options, config = train("--resume", "--out", folder)
    assert (options.resume, options.out) == (True, folder)
    assert config == Config.of(alpha=0.9, epochs=7)
    assert train("--resume", "--out", folder, "--seed", 4)[1] == Config.of(alpha=0.9, epochs=7, seed=4)
    assert train("--resume", "--out", folder, "--config", file)[1].seed == 5
    assert train("--out", folder)[1] == Config(), "only --resume reads what is there"


def test_each_command_reads_its_own_kind_of_file(file, tmp_path):
    own = tmp_path / "pretrain.toml"
    own.write_text(to_toml(PretrainConfig(encoder="byol", epochs=3, lr=0.5)))
    options, config = parse(Pretrain, PretrainConfig, ["--config", str(own), "--lr", "None"], "cll pretrain")
    assert config == PretrainConfig(encoder="byol", epochs=3)
    assert options.show_views is None
    with pytest.raises(UserError, match="has a section"):
        parse(Pretrain, PretrainConfig, ["--config", str(file)], "cll pretrain")
    with pytest.raises(UserError, match="cannot be read"):
        train("--config", tmp_path / "nowhere.toml")


def test_a_shortened_option_is_refused_not_half_understood(file, capsys):
    """The base is found before tyro parses: were --conf accepted there, the file would be left unread."""
    with pytest.raises(SystemExit):
        train("--conf", file)
    assert "--config" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--epochs", 0], "The option epochs is 0, but it must be at least 1."),  # of a nested configuration
        (["--holdout", 3], "The option holdout is 3.0, but it must be between 0 and 0.5."),
    ],
)
def test_a_sentence_of_the_configuration_is_not_put_into_a_box(cll, capsys, arguments, sentence):
    with pytest.raises(UserError) as found:
        train(*arguments)
    assert str(found.value) == sentence
    assert capsys.readouterr() == ("", "")
    assert cll("train", *arguments) == (2, "", f"cll train: {sentence}\n")


def test_so_it_is_where_the_command_itself_refuses(cll):
    """An option of the root, not of a part of it."""
    sentence = "The option epochs is 0, but it must be at least 1."
    assert cll("pretrain", "--epochs", 0) == (2, "", f"cll pretrain: {sentence}\n")


def test_what_tyro_itself_finds_is_still_said(cll):
    for arguments, said in ((["--epochs", "two"], "--epochs"), (["--epoks", 2], "Perhaps you meant")):
        status, out, error = cll("train", *arguments)
        assert (status, out) == (2, "")
        assert said in error
    status, out, error = cll("train", "--help")
    assert (status, error) == (0, "")
    assert "usage: cll train" in out


def test_what_is_printed_while_options_are_read_is_not_lost(capsys):
    with common.own_sentences():
        print("a warning", file=sys.stderr)
    assert capsys.readouterr().err == "a warning\n"


@pytest.mark.parametrize("command", ["report", "train", "cluster", "paper show", "paper main"])
def test_help_names_a_path_as_such_and_none_still_goes(cll, command):
    status, out, _ = cll(*command.split(), "--help")
    assert status == 0
    assert " PATH " in out
    assert "{None}|PATH" not in out
    assert train("--out", "None")[0].out is None


# --- where it goes, and what is shown -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "folder"),
    [("digits", "digits-icm-0"), ("kmnist-7011", "kmnist-7011-icm-0"), ("pets.v2", "pets.v2-icm-0")]
    + [(path, "x.npz-icm-0") for path in ("x.npz", "sets/x.npz", "../x.npz", "/data/x.npz")],
)
def test_runs_without_out_are_under_runs_even_for_a_path(data, folder):
    assert default_folder(data, "icm", 0) == Path("runs") / folder


@pytest.fixture
def bar(monkeypatch):
    """The bar that is made: its one task tells what is on the screen."""
    made = []

    class Seen(common.Progress):
        def __init__(self, *columns, **options):
            super().__init__(*columns, **options)
            made.append(self)

    monkeypatch.setattr(common, "Progress", Seen)
    monkeypatch.setattr(common, "Console", functools.partial(common.Console, force_terminal=True))
    return made


def shown(bar):
    return [column.render(bar.tasks[0]).plain for column in (bar.columns[0], bar.columns[-1])]


def test_the_bar_says_where_the_job_is_and_how_it_goes(bar):
    job = SimpleNamespace(stage="", epochs=4, steps_per_epoch=10, epoch=0, step_in_epoch=3, history=[])
    with epochs_bar({"loss": "loss", "oracle_knn": "kNN (oracle)"}) as show:
        assert shown(bar[0])[1] == "preparing data"
        show(job)
        assert shown(bar[0]) == ["epoch 0/4", ""]
        assert (bar[0].tasks[0].completed, bar[0].tasks[0].total) == (3, 40)
        job.epoch, job.step_in_epoch, job.history = 2, 0, [{"loss": 9.0}, {"loss": 0.51234, "oracle_knn": 0.8}]
        show(job)
        assert shown(bar[0]) == ["epoch 2/4", "loss 0.512 · kNN (oracle) 0.800"]
        assert bar[0].tasks[0].completed == 20


def test_a_figure_that_is_not_known_is_not_shown(bar):
    """kNN without true labels is None."""
    known = {"stage": "", "history": [{"loss": 1, "knn": None}]}
    job = SimpleNamespace(epochs=1, steps_per_epoch=1, epoch=1, step_in_epoch=0, **known)
    with epochs_bar({"loss": "loss", "knn": "kNN", "accuracy": "test"}) as show:
        show(job)
        assert shown(bar[0])[1] == "loss 1.000"


@pytest.mark.parametrize("command", ["train", "pretrain"])
def test_resuming_nothing_is_refused_and_starts_nothing(cll, tmp_path, command):
    status, _, error = cll(command, "--resume", "--out", tmp_path / "none")
    assert status == 2
    assert "There is no run in" in error
    assert not (tmp_path / "none").exists()


def test_where_there_is_no_terminal_progress_is_a_line_from_time_to_time(monkeypatch, capsys):
    monkeypatch.setattr(common, "EVERY", 0.0)
    with common.epochs_bar({"loss": "loss", "oracle_knn": "kNN"}) as show:
        run(Config.of(data="digits", mix="none", epochs=3, batch=256), device="cpu", progress=show)
    lines = capsys.readouterr().out.splitlines()
    steps = [f"epoch {e}/3, step {s} of 5" for e in (1, 2, 3) for s in (1, 2, 3, 4)]
    wanted = [*steps[:4], "epoch 1/3", *steps[4:8], "epoch 2/3", *steps[8:]]  # of the last the result tells
    assert [line.split(" · ")[0] for line in lines] == wanted
    assert re.fullmatch(r"epoch 1/3, step 1 of 5 · about \d:\d\d:\d\d left", lines[0])
    assert re.fullmatch(r"epoch 1/3 · loss \d\.\d{3} · about \d:\d\d:\d\d left", lines[4])


def test_lines_are_not_written_more_often_than_they_can_be_read(capsys):
    with common.epochs_bar({"loss": "loss"}) as show:
        run(Config.of(data="digits", mix="none", epochs=4, batch=256), device="cpu", progress=show)
    assert len(capsys.readouterr().out.splitlines()) == 1
