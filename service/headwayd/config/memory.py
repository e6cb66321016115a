"""How much memory the environment grants this process: its control group's limit, else the machine's."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def granted_bytes(root: Path = ROOT, membership: Path = _MEMBERSHIP) -> int:
    """The least limit from this process's control group up to the root, and never more than the machine has."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits(root, membership)])


def _limits(root: Path, membership: Path) -> list[int]:
    found = []
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # no Linux
        return []
    for line in lines:
        # "0::/a/b" in version 2, "9:memory:/a/b" in version 1: https://docs.kernel.org/admin-guide/cgroup-v2.html
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found += _up(root, path, "memory.max")
        elif "memory" in controllers.split(","):
            found += _up(root / "memory", path, "memory.limit_in_bytes")
    return found


def _up(root: Path, path: str, name: str) -> list[int]:
    """From the group up to the root. In a container the path may be one of the host, of which only the root is seen."""
    found = []
    group = root / path.lstrip("/")
    for folder in (group, *group.parents):
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            text = "max"
        if text.isdigit():
            found.append(int(text))
        if folder == root:
            break
    return found
