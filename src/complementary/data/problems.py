"""What is wrong with the files of an import: collected, reported together, and never lost."""

import contextlib
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from complementary.errors import UserError

log = logging.getLogger(__name__)
LOGGED = 25  # problems of each kind; the report file lists all
TOLERANCE = 0.1  # share of the examples that may be left out without being asked to
Level = Literal["error", "left out", "unlabeled", "unmatched", "note"]


@dataclass
class Problems:
    """Problems by kind, such as "train images without a label", with the examples concerned.

    An "error" stops the import. Examples that are "left out", because of a defect or because they are "unlabeled", and
    names in the table of answers that are "unmatched", because no example is called so, stop it if they are more than a
    tenth of all examples. A "note" only needs to be known.
    """

    found: dict[str, list[str]] = field(default_factory=dict)
    levels: dict[str, Level] = field(default_factory=dict)

    def add(self, kind: str, example: str, level: Level = "error") -> None:
        """Record one problem; characters that cannot be displayed are escaped."""
        shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in example)
        self.found.setdefault(kind, []).append(shown)
        self.levels[kind] = level

    def __len__(self) -> int:
        return sum(map(len, self.found.values()))

    def count(self, level: Level) -> int:
        """Number of problems of a level."""
        return sum(len(examples) for kind, examples in self.found.items() if self.levels[kind] == level)

    def text(self, limit: int | None = None) -> str:
        """All problems, or the first ``limit`` of each kind, one per line."""
        lines = []
        for kind, examples in self.found.items():
            lines.append(f"{'note: ' if self.levels[kind] == 'note' else ''}{kind} ({len(examples):,}):")
            lines += [f"  {example}" for example in examples[:limit]]
            hidden = len(examples) - len(examples[:limit])
            if hidden:
                lines.append(f"  ... and {hidden:,} more")
        return "\n".join(lines)

    def report(
        self, path: Path, report: Path | None, skip_bad: bool, examples: int, skip_unlabeled: bool = False
    ) -> None:
        """Log the problems and write them to a file; raise if the import has to stop.

        Args:
            path: What is imported, for messages.
            report: File for the complete list.
            skip_bad: Whether examples with problems are left out in any case.
            examples: Number of examples that were found.
            skip_unlabeled: Whether unlabeled examples are left out in any case.
        """
        if not len(self):
            return
        listed = ""
        if report is not None:
            with contextlib.suppress(OSError):
                report.write_text(self.text() + "\n", encoding="utf-8")
                listed = f" (listed in {report})"
        log.warning("%s", self.text(LOGGED if listed else None))
        errors, defects, unlabeled = self.count("error"), self.count("left out"), self.count("unlabeled")
        left_out, unmatched, allowed = defects + unlabeled, self.count("unmatched"), TOLERANCE * examples
        many = defects + unmatched + (0 if skip_unlabeled else unlabeled) > allowed
        total = errors + left_out + unmatched
        count = f"{total:,} problem{'s' if total > 1 else ''}{listed}"
        if (errors or many) and not skip_bad:
            option = "skip_bad" if errors or defects + unmatched > allowed else "skip_unlabeled"
            parts = [f"{left_out:,} of {examples:,} examples would be left out"] if left_out else []
            parts += [f"{unmatched:,} names in the table match none of {examples:,} examples"] if unmatched else []
            why = f" {', and '.join(parts)}: more than a tenth." if many else ""
            raise UserError(f"{path}: {count}; nothing was imported.{why} Fix them, or skip the examples.", option)
        if total:
            kept = "; examples with a note are kept" if self.count("note") else ""
            log.warning("%s: they are left out, all other examples are imported%s", count, kept)
