"""The command ``cll``. Each subcommand has a module here, which is imported when the command is called.

Those modules import torch only after the options are parsed, so that ``--help`` answers quickly.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

COMMANDS = {  # a module of this package with a function main(arguments) -> one line of help
    "demo": "see it work: 1,797 digits, four ways of mixing, about a minute",
    "train": "train a classifier from complementary labels",
    "pretrain": "pretrain an encoder on images alone",
    "cluster": "cluster a dataset and evaluate the clusters",
    "sweep": "run a grid of configurations, on this machine or on Ray",
    "report": "the page of one run, or tables from the results of many",
    "paper": "the tables and figures of the ICM paper, one command each",
    "methods": "list losses and recipes, and what each assumes",
    "data": "list, download, show, import and remove datasets",
    "predict": "apply a trained run to images or vectors",
    "export": "write a trained run as ONNX, torch program or weights",
    "bench": "measure the speed of this machine (in a clone of the repository)",
}


def main(arguments: list[str] | None = None) -> None:
    """Run one command. Bad input ends with one line on stderr and exit status 2."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or [""]
    if name in ("", "-h", "--help"):
        status = _run("cll", lambda: print(_usage(), flush=True))
        raise SystemExit(status if name else 2)
    if name == "--version":
        print(f"complementary {import_module('complementary').__version__}")
        return
    if name not in COMMANDS:
        fail("cll", f"there is no command {name!r}; choose one of: {', '.join(COMMANDS)}.")
    try:
        status = _run(f"cll {name}", lambda: import_module(f"complementary.cli.{name}").main(rest))
    except SystemExit as error:
        if "TORCHELASTIC_RUN_ID" in os.environ:
            _leave(error.code if isinstance(error.code, int) else int(error.code is not None))
        raise
    if "TORCHELASTIC_RUN_ID" in os.environ:
        _leave(status)
    raise SystemExit(status)


def _leave(status: int) -> NoReturn:
    """End a process that torchrun started, without the finalization of Python.

    Threads of the process group may still be running: after a failure in a collective that another process will never
    join, after a success in the shutdown of the group. Finalization destroys the group under them, and the process
    would sometimes end with SIGABRT instead of its exit status.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _usage() -> str:
    """The text of ``cll --help``."""
    rows = [f"  {name:<9} {line}" for name, line in COMMANDS.items()]
    return (
        "usage: cll COMMAND [options]\n\nLearn classifiers from labels that say what an example is not.\n\ncommands:\n"
        + "\n".join(rows)
        + "\n\ncll COMMAND --help shows the options of a command. cll --version shows the version."
    )


def fail(prog: str, message: str) -> NoReturn:
    """Print one line on stderr and exit with status 2."""
    print(f"{prog}: {message}", file=sys.stderr)
    raise SystemExit(2)


def _run(prog: str, command: Callable[[], None]) -> int:
    """Run a command with its log on stderr -> exit status."""
    from complementary.errors import UserError, install_command
    from complementary.reports.terminal import log_to_stderr

    if getattr(sys.stdout, "errors", None) == "strict":  # a file name that is not valid UTF-8 is escaped
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        with log_to_stderr():
            try:
                command()
            finally:
                sys.stdout.flush()  # on a full disk this fails; at the exit of Python, it would not be reported
    except UserError as error:
        fail(prog, _message(error, error.option))
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "complementary":
            raise
        fail(prog, f"the package {error.name} is not installed; {install_command('cli')}.")
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        _discard_output()
    except OSError as error:
        _discard_output()
        place = f"{error.filename} cannot be used" if error.filename is not None else "a file cannot be used"
        fail(prog, f"{place} ({error.strerror or error}); check the disk, and the permissions of the folder.")
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        reason = (str(error).splitlines() or [""])[0][:200]
        fail(
            prog,
            f"there is not enough memory{f' ({reason})' if reason else ''}; use a smaller batch or fewer examples.",
        )
    except KeyboardInterrupt as error:
        print(f"\n{prog}: {str(error) or 'stopped'}.", file=sys.stderr)
        return 128 + int(getattr(error, "number", signal.SIGINT))
    return 0


def _discard_output() -> None:
    """Send what is still buffered for stdout nowhere; otherwise Python tries again at its exit, and complains."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_out_of_memory(error: Exception) -> bool:
    """Whether Python, NumPy or torch could not allocate memory; torch is not imported for this."""
    return isinstance(error, MemoryError) or any(
        words in f"{type(error).__name__} {error}" for words in ("OutOfMemoryError", "can't allocate memory")
    )


def _message(error: Exception, option: str | None) -> str:
    """The message of an error, with the flag of the option at fault where the command has one."""
    if option is None:
        return str(error)
    from complementary.cli.options import flag_of

    flag = flag_of(option)
    return f"{error} ({flag})" if flag is not None else str(error)
