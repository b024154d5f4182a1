"""The command ``cll``: each subcommand is a typed function or dataclass that tyro turns into options.

Modules are imported when their command is called, so that ``cll --help`` answers at once.
"""

import os
import sys
from collections.abc import Callable
from importlib import import_module

# name -> (module, function, one line); a group of commands names its table instead of a function
COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": ("complementary.cli.demo", "main", "see it work: 1,797 digits, four ways of mixing, about a minute"),
    "train": ("complementary.cli.train", "main", "train a classifier from complementary labels"),
    "pretrain": ("complementary.cli.pretrain", "main", "pretrain an encoder on images alone"),
    "cluster": ("complementary.cli.cluster", "main", "cluster a dataset and judge the clusters"),
    "sweep": ("complementary.cli.sweep", "main", "run a grid of configurations, on this machine or on Ray"),
    "report": ("complementary.cli.report", "main", "tables from the results of many runs"),
    "paper": ("complementary.cli.paper", "main", "every table and figure of the ICM paper, as one command each"),
    "data": ("complementary.cli.data", "main", "list, get, show, import and remove datasets"),
    "predict": ("complementary.cli.predict", "main", "apply a trained run to images or vectors"),
    "bench": ("complementary.cli.bench", "main", "measure the speed of this machine"),
}

USAGE = "usage: cll COMMAND [options]\n\nLearn classifiers from labels that say what a thing is not.\n\ncommands:\n"


def main(arguments: list[str] | None = None) -> None:
    """Run one command; bad input ends in one sentence and status 2."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or [""]
    if name in ("", "-h", "--help"):
        status = _guarded("cll", lambda: print(usage(), flush=True))
        raise SystemExit(status if name else 2)
    if name == "--version":
        print(f"complementary {import_module('complementary').__version__}")
        return
    if name not in COMMANDS:
        fail("cll", f"there is no command {name!r}; choose one of: {', '.join(COMMANDS)}.")
    raise SystemExit(_guarded(f"cll {name}", lambda: _find(name)(rest)))


def usage() -> str:
    """The text of ``cll --help``."""
    rows = [f"  {name:<9} {line}" for name, (_, _, line) in COMMANDS.items()]
    return USAGE + "\n".join(rows) + "\n\ncll COMMAND --help tells more; cll --version."


def fail(who: str, sentence: str) -> None:
    """Print one sentence on standard error and exit with status 2."""
    print(f"{who}: {sentence}", file=sys.stderr)
    raise SystemExit(2)


def _find(name: str) -> Callable[[list[str]], None]:
    module, function, _ = COMMANDS[name]
    found: Callable[[list[str]], None] = getattr(import_module(module), function)
    return found


def _guarded(who: str, call: Callable[[], None]) -> int:
    from complementary.errors import UserError

    try:
        call()
    except UserError as error:
        fail(who, str(error))
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "complementary":
            raise
        fail(who, f"the package {error.name} is missing; pip install 'complementary[cli]' brings it.")
    except BrokenPipeError:  # the reader, such as head, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes
    except KeyboardInterrupt as error:
        print(f"\n{who}: {str(error) or 'stopped'}.", file=sys.stderr)
        return 130
    return 0
