"""Everything that is wrong with what the user gave, collected first and told in one report."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Problems:
    """Problems by kind, such as "pictures that cannot be read", each with the example it concerns."""

    found: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, line: str) -> None:
        """Note one problem."""
        self.found.setdefault(kind, []).append(line)

    def __len__(self) -> int:
        return sum(map(len, self.found.values()))

    def report(self, most: int | None = None) -> str:
        """All problems as text, or the first ``most`` of each kind."""
        lines = []
        for kind, examples in self.found.items():
            lines.append(f"{len(examples):,} {kind}:")
            lines += [f"  {example}" for example in examples[:most]]
            hidden = len(examples) - len(examples[:most])
            if hidden:
                lines.append(f"  ... and {hidden:,} more")
        return "\n".join(lines)

    def counts(self) -> str:
        """One line: how many of each kind."""
        return ", ".join(f"{len(examples):,} {kind}" for kind, examples in self.found.items())

    def write(self, path: Path) -> bool:
        """Write the whole report to ``path``; False if that cannot be written (the screen still has it)."""
        try:
            path.write_text(self.report() + "\n")
        except OSError:
            return False
        return True
