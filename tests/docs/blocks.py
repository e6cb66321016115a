"""Finds the fenced blocks of a Markdown text, and compares what a block printed with what the text says it prints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ANYTHING = "…"
_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block: the words behind its fence, its text, its line, and the `text` block right behind it."""

    words: tuple[str, ...]
    text: str
    line: int
    printed: str | None = None

    @property
    def is_run(self) -> bool:
        """Marked to be executed."""
        return "run" in self.words


def blocks_of(markdown: str) -> list[Block]:
    """Every block in order; a `text` block right behind one that is run belongs to it."""
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(markdown):
        words = tuple(match["info"].split())
        is_output = words == ("text",) and not markdown[end : match.start()].strip()
        end = match.end()
        if is_output and found and found[-1].is_run:
            last = found.pop()
            found.append(Block(words=last.words, text=last.text, line=last.line, printed=match["text"]))
        else:
            found.append(Block(words=words, text=match["text"], line=markdown.count("\n", 0, match.start()) + 1))
    return found


def prints(expected: str, printed: str) -> bool:
    """Whether `printed` is what the text says, with "…" for anything in a line. Blanks that end a line do not count."""
    wanted = [line.rstrip() for line in expected.rstrip().splitlines()]
    seen = [line.rstrip() for line in printed.rstrip().splitlines()]
    return len(wanted) == len(seen) and all(map(_matches, wanted, seen))


def _matches(wanted: str, seen: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, wanted.split(ANYTHING))), seen) is not None
