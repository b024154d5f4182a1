"""Where a sweep keeps what.

| file | what |
|---|---|
| sweep.json | the cells of the grid that was started last |
| runs/KEY/ | the run of one cell, as ``cll train`` writes it; KEY: the first 16 digits of its configuration's hash |
| logs/KEY.log | what its workers said |
| notes/KEY.note | who works on it since when, how long it took, and why it failed; JSON |
| .lock | held while a sweep runs here |
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from complementary.errors import UserError
from complementary.files import atomic_write
from complementary.sweeps.results import Damaged, Row, row_of


@dataclass(frozen=True)
class SweepFolder:
    """The folder of a sweep; ``key`` is that of a cell or of a shared stage."""

    root: Path

    def make(self) -> None:
        """Make the folders inside, unless there is something else."""
        if (self.root / "config.toml").exists():
            raise UserError(f"{self.root} is the folder of a single run; choose another --out for the sweep.")
        try:
            for name in ("runs", "logs", "notes"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = error.strerror
            raise UserError(f"The folder {self.root} cannot be made ({why}); choose another --out.") from None

    @property
    def lock(self) -> Path:
        """Held by the sweep that runs here."""
        return self.root / ".lock"

    def run(self, key: str) -> Path:
        """The folder of one cell's run."""
        return self.root / "runs" / key

    def result(self, key: str) -> Path:
        """There once the cell is finished."""
        return self.run(key) / "result.json"

    def finished(self) -> dict[str, Row | str]:
        """The cells whose result is there, by key: a row of the store, or a sentence if the file is damaged.

        A run of an earlier version counts as what its configuration is called today.
        """
        found: dict[str, Row | str] = {}
        for path in sorted((self.root / "runs").glob("*/result.json")):
            try:
                row = row_of(path)
                found[row["config_hash"][:16]] = row
            except Damaged as error:
                advice = "Put back a good copy, or delete it: then the same sweep makes it anew."
                found.setdefault(path.parent.name, f"{error.fact} {advice}")
        return found

    def unfinished(self) -> set[str]:
        """The keys of the cells that were begun, and have no result."""
        return {run.name for run in (self.root / "runs").glob("*/") if not (run / "result.json").exists()}

    def log(self, key: str) -> Path:
        """What the workers of a cell or stage said."""
        return self.root / "logs" / f"{key}.log"

    def note(self, key: str) -> dict[str, Any]:
        """What is known of a cell besides its run; {} if nothing."""
        try:
            found = json.loads(self._note(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write_note(self, key: str, **facts: Any) -> None:
        """Replace the note of a cell."""
        atomic_write(self._note(key), json.dumps(facts).encode())

    def _note(self, key: str) -> Path:
        return self.root / "notes" / f"{key}.note"

    def plan(self) -> dict[str, Any]:
        """The content of sweep.json."""
        path = self.root / "sweep.json"
        if self.root.is_file():
            raise UserError(f"{self.root} is a file, but a sweep is a folder; name the --out of the sweep.")
        try:
            plan: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            plan["sweep"], plan["workers"], plan["cells"]
        except FileNotFoundError:
            raise UserError(f"There is no sweep in {self.root} (no sweep.json); name the --out of a sweep.") from None
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UserError(f"{path} cannot be read ({error}); start the sweep again to write it anew.") from None
        return plan

    def write_plan(self, plan: dict[str, Any]) -> None:
        """Replace sweep.json."""
        atomic_write(self.root / "sweep.json", (json.dumps(plan, indent=1) + "\n").encode())
