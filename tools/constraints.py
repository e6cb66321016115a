"""Checks constraints.txt: exactly the packages that the two projects need, at exactly the versions installed."""

import importlib.metadata
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = {"headway": {"cli"}, "headwayd": {"dev"}}


def needed() -> dict[str, str]:
    """Name and installed version of everything the projects need, directly or through others."""
    found: dict[str, str] = {}
    queue = [(name, frozenset(extras)) for name, extras in PROJECTS.items()]
    seen = set(queue)
    while queue:
        name, extras = queue.pop()
        distribution = importlib.metadata.distribution(name)
        if name not in PROJECTS:
            found[name] = distribution.version
        for text in distribution.requires or []:
            requirement = Requirement(text)
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
                continue
            step = (str(canonicalize_name(requirement.name)), frozenset(requirement.extras))
            if step not in seen:
                seen.add(step)
                queue.append(step)
    return found


def constrained() -> dict[str, str]:
    """Name and version of every line of constraints.txt."""
    lines = (line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {str(canonicalize_name(name)): version for name, version in pairs}


def main() -> None:
    """Prints every difference and exits 1 if there is one."""
    have, want = constrained(), needed()
    problems = [
        f"{name} {want[name]} is needed but not in constraints.txt" for name in sorted(want.keys() - have.keys())
    ]
    problems += [f"{name} is in constraints.txt but nothing needs it" for name in sorted(have.keys() - want.keys())]
    problems += [
        f"{name}: constraints.txt says {have[name]}, installed is {want[name]}"
        for name in sorted(have.keys() & want.keys())
        if have[name] != want[name]
    ]
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
