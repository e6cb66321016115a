"""What a deliberate defect is, and how it is made in a copy of the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LUA = "store/lua/"
INCLUDE = "store/lua/include/"
EXACT = "tests/integration/test_exact_instants.py::"
WIRE = "tests/wire/"
LOST = "tests/faults/test_line_answers_lost.py::"
ENDS = "tests/faults/test_streams_end.py::"


class MutantDoesNotFit(Exception):
    """The code has changed under a mutant; the text says how to repair the table."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One defect: `old` becomes `new` in `file` (below service/headwayd), and `test` must fail."""

    name: str
    defect: str
    file: str
    old: str
    new: str
    test: str

    def misfit(self, service: Path) -> str:
        """Empty if the defect can be made in the package below `service`; else what to do."""
        path = service / "headwayd" / self.file
        if not path.exists():
            return f"{self.name}: there is no service/headwayd/{self.file} any more. {_REPAIR}"
        found = path.read_text().count(self.old)
        if found == 1:
            return ""
        return (
            f"{self.name}: its old text occurs {found} times in service/headwayd/{self.file} and must occur once.\n"
            f"  old text: {self.old!r}\n  {_REPAIR}"
        )

    def apply(self, service: Path) -> None:
        """Makes the defect in a copy. Raises MutantDoesNotFit."""
        if text := self.misfit(service):
            raise MutantDoesNotFit(text)
        path = service / "headwayd" / self.file
        path.write_text(path.read_text().replace(self.old, self.new))


_REPAIR = (
    "In tests/mutants/defects give this entry the line as it is written now, so that it still makes the defect it"
    " describes, and run `make mutants ARGS=<its name>`. Remove an entry only if its defect cannot be made any more."
)
