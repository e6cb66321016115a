"""Installs what the peers need: run by `make bench-peers-setup`. Servers come from the system's package manager (as
root, where there is apt-get), or are built from their Go module; drivers' libraries go into `.bench-peers`, never into
the project's own environment. Says what it could not install; the benchmark leaves those peers out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))  # run as a file, before any environment is there
from bench.peers.places import FOLDER, GO_DRIVERS, NODE, PROGRAMS, PYTHONS  # noqa: E402 - needs the path above

# Program → Debian's package. NATS is built where there is Go: Debian's 2.9 cannot be told when to fsync.
PACKAGES = {
    "beanstalkd": "beanstalkd",
    "rabbitmq-server": "rabbitmq-server",
    "h2load": "nghttp2-client",
    "redis-benchmark": "redis-tools",
}
NATS_SERVER = "github.com/nats-io/nats-server/v2@v2.15.2"
NATS_PROGRAM = "github.com/nats-io/natscli/nats@v0.5.1"  # has JetStream's own benchmark
POLICY = Path("/usr/sbin/policy-rc.d")  # Debian asks it whether a package may start its service


def run(*command: str | Path, cwd: Path | None = None, **environment: str) -> bool:
    """Runs a command; whether it went well. What it prints is shown."""
    print("+", *command, flush=True)
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=os.environ | environment, check=False)
    return done.returncode == 0


@contextmanager
def starting_nothing() -> Iterator[None]:
    """Packages of servers start no server meanwhile. A policy that is there stays."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def install_packages() -> str:
    """By apt-get; what is in the way, or ''."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    wanted = [package for program, package in PACKAGES.items() if shutil.which(program, path=path) is None]
    if not wanted:
        return ""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"needs root and apt-get, or install yourself: {' '.join(wanted)}"
    with starting_nothing():
        install = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted)
        is_done = run("apt-get", "update", "-qq") and run(*install, DEBIAN_FRONTEND="noninteractive")
    return "" if is_done else f"apt-get could not install {' '.join(wanted)}"


def install_python(environment: str, requirements: Path) -> str:
    """One virtual environment; what is in the way, or ''."""
    folder = FOLDER / environment
    python = folder / "bin" / "python"
    if not python.exists() and not run(sys.executable, "-m", "venv", folder):
        return "no virtual environment could be made"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "-r", requirements)
    return "" if run(*pip) else f"pip could not install {requirements.name}"


def install_node() -> str:
    """BullMQ; what is in the way, or ''."""
    if shutil.which("npm") is None:
        return "npm is not installed"
    NODE.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "package.json", NODE)
    flags = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock")
    is_done = run("npm", "install", *flags, cwd=NODE)
    return "" if is_done else "npm could not install BullMQ"


def install_go() -> str:
    """NATS, NSQ, and the drivers that use Go clients; what is in the way, or ''."""
    if shutil.which("go") is None:
        return "go is not installed"
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    is_there = all(
        (PROGRAMS / name).exists() or run("go", "install", module, GOBIN=str(PROGRAMS))
        for name, module in {"nats-server": NATS_SERVER, "nats": NATS_PROGRAM}.items()
    )
    # NSQ is a tool of the drivers' module: its own replaces a dependency, which `go install` does not do.
    is_built = run("go", "build", "-o", f"{PROGRAMS}/", "./...", "tool", cwd=GO_DRIVERS)
    return "" if is_there and is_built else "go could not build NATS, NSQ or the drivers"


def main() -> None:
    """Installs all it can. Whatever is not there leaves a peer out, so this fails only if nothing is."""
    FOLDER.mkdir(exist_ok=True)
    troubles = {"system's packages": install_packages()}
    for environment, requirements in PYTHONS.items():
        troubles[f"Python, {environment}"] = install_python(environment, requirements)
    troubles |= {"Node": install_node(), "Go": install_go()}
    print()
    for name, trouble in troubles.items():
        print(f"{name}: {trouble or 'installed'}")
    raise SystemExit(1 if all(troubles.values()) else 0)


if __name__ == "__main__":
    main()
