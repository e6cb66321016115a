"""The image is built as the Dockerfile says, without a container engine and without the public base, and works."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import processes
from harness.figures import Figure
from image.base import make_base
from image.box import ROOT, Box, Buildah, terminate

pytestmark = pytest.mark.any_store

# Beside buildah all of this is part of every Linux.
TOOLS = ("buildah", "unshare", "mount", "chroot", "setpriv", "ldd", "ldconfig")
ADDRESSES = re.compile(rb"serving on (\S+), (http://\S+) \(store: embedded valkey .*, /var/lib/headway\)")


def missing() -> str | None:
    """What this machine lacks. Under CI that is a failure: .ci/run installs buildah and runs as root."""
    if not sys.platform.startswith("linux"):
        return "images are built on Linux only"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"not on the path: {', '.join(absent)}"
    return None if os.geteuid() == 0 else "entering an image needs root"


# Prints who runs, then every folder of the image in which a file can be made.
MAY_WRITE = """
import os, tempfile
print(os.getuid(), os.getgid())
for folder, _, _ in os.walk("/"):
    if folder.startswith(("/proc", "/dev")):
        continue
    try:
        with tempfile.TemporaryFile(dir=folder):
            print(folder)
    except OSError:
        pass
"""
COMPILERS = re.compile(
    r"(.*-)?(cc|c\+\+|gcc|g\+\+|cpp|clang|clang\+\+|tcc|ld|as|make|cmake|ninja|meson|rustc|cargo|go|javac|cython)(-?[\d.]+)?"
)


def compilers_in(root: Path) -> list[Path]:
    """Programs in an image that make programs."""
    return [path for path in root.rglob("*") if COMPILERS.fullmatch(path.name) and is_program(path)]


def is_program(path: Path) -> bool:
    """Whether it can be executed; a link leads outside of the image, so it counts as what it is called."""
    return path.is_symlink() or (path.is_file() and bool(path.stat().st_mode & 0o111))


def is_privileged(path: Path) -> bool:
    """Whether it makes whoever runs it somebody else."""
    return path.is_file() and not path.is_symlink() and bool(path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID))


@pytest.fixture
def box(short_dir: Path) -> Iterator[Box]:
    reason = missing()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    buildah = Buildah(short_dir)
    make_base(short_dir / "base")
    buildah.build_base("base", short_dir / "base")
    buildah.build("headway", ROOT, ROOT / "Dockerfile", PYTHON_IMAGE="localhost/base", REVISION="abc")
    yield Box(buildah, "localhost/headway", short_dir / "volume")
    buildah.run("rm", "--all")
    buildah.run("rmi", "--all", "--force")


async def started(process: subprocess.Popen[bytes], log: Path) -> tuple[str, str]:
    """The addresses that the first line tells: of gRPC, and of HTTP."""
    assert process.stdout is not None
    async with asyncio.timeout(30):
        line = await asyncio.to_thread(process.stdout.readline)
    match = ADDRESSES.search(line)
    assert match, line.decode() + processes.tail(log)
    return match[1].decode(), match[2].decode()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_image_serves_from_a_read_only_file_system_and_keeps_its_data_in_the_volume(
    box: Box, tmp_path: Path, figure: Figure
) -> None:
    # It tells what it is and where it answers, and holds what constraints.txt says, without an installer.
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    told = {name.removeprefix("org.opencontainers.image."): text for name, text in box.config["Labels"].items()}
    assert (told["title"], told["version"], told["revision"]) == ("headway", version, "abc")
    assert told["base.name"] == "localhost/base"
    assert set(box.config["ExposedPorts"]) == {"7420/tcp", "7421/tcp"}
    listed = box.run(
        "python", "-c", "import importlib.metadata as m; [print(d.name, d.version) for d in m.distributions()]"
    )
    installed = dict(line.split() for line in listed.stdout.splitlines())
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert installed.keys() - pinned.keys() == {"headway", "headwayd"}
    assert {name: installed[name] for name in installed.keys() & pinned.keys()}.items() <= pinned.items()

    # What built it stayed behind, and whoever runs it can neither change what it runs nor become somebody else.
    assert compilers_in(box.root) == []
    found = box.run("python", "-c", MAY_WRITE)
    assert found.stdout.splitlines() == ["10001 10001", "/var/lib/headway"]
    assert [path for path in box.root.rglob("*") if is_privileged(path)] == []

    # It does not open itself to other machines unasked.
    refused = box.run("headwayd", "serve")
    assert refused.returncode == 2, refused.stderr
    assert "--insecure" in refused.stderr

    # It serves, as process 1, and what it may not write to it does not miss.
    log, local = tmp_path / "log", {"HEADWAY_LISTEN": "127.0.0.1:0", "HEADWAY_HTTP_LISTEN": "127.0.0.1:0"}
    process = box.spawn(log, **local)
    try:
        address, _ = await started(process, log)
        assert box.run("python", "-c", "open('/opt/headway/x', 'w')").stderr.endswith(
            "Read-only file system: '/opt/headway/x'\n"
        )
        _, *health = box.config["Healthcheck"]["Test"]
        assert box.run(*health, HEADWAY_LISTEN=address).returncode == 0
        assert box.run("headway", "put", "jobs", "kept", HEADWAY_ADDRESS=address).returncode == 0
        assert terminate(process) == 0, processes.tail(log)
        assert box.run(*health, HEADWAY_LISTEN=address).returncode == 1

        # What was put is in the volume. Several processes need no more to write to than one.
        process = box.spawn(log, **local, HEADWAY_WORKERS="2")
        address, http = await started(process, log)
        assert box.run("headway", "get", "jobs", "--ack", HEADWAY_ADDRESS=address).stdout == "kept"
        metrics = box.run(
            "python", "-c", f"import urllib.request as r; print(r.urlopen('{http}/metrics').read().decode())"
        )
        assert "\nheadway_queues 1.0\n" in metrics.stdout, metrics.stderr
        assert terminate(process) == 0, processes.tail(log)
    finally:
        processes.stop(process)
    size = sum(path.lstat().st_size for path in (box.root / "opt/headway").rglob("*"))
    figure("what the image adds to its base", f"{size / 1e6:.0f} MB")
