"""Builds images and runs programs in them without a container engine: buildah builds, namespaces confine.

A program runs as an engine would run it: the image's own environment and user, process 1 of its own, no privilege to
gain, and a root file system that cannot be written to but for the volume.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import processes

ROOT = Path(__file__).resolve().parents[2]
_BASE = 'FROM scratch\nCOPY . /\nENV PATH=/usr/local/bin:/bin\nCMD ["python"]\n'
# $1: the image's root, $2: where the volume belongs in it, $3: the volume, $4: the user, then the program.
_ENTER = """
set -e
root=$1 at=$2 volume=$3 user=$4
shift 4
mount --bind "$root" "$root"
mount -o remount,ro,bind "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount --bind "$volume" "$root$at"
exec setpriv --no-new-privs chroot --userspec="$user" "$root" "$@"
"""


class Buildah:
    """Images in a folder of their own, away from any other of this machine."""

    def __init__(self, folder: Path) -> None:
        self._options = ["--root", str(folder / "images"), "--runroot", str(folder / "run"), "--storage-driver", "vfs"]

    def run(self, *words: str | Path, timeout_s: float = 60) -> str:
        """Runs buildah with these words; what it prints. Fails the test with what it says if it fails."""
        command, *rest = map(str, words)
        line = ["buildah", *self._options, command, *rest]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=timeout_s, cwd=ROOT)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout.strip()

    def build(self, name: str, context: Path, file: Path, **arguments: str) -> None:
        """Builds an image. The Docker format, for OCI's has no place for a HEALTHCHECK."""
        words = ["bud", "--isolation", "chroot", "--format", "docker", "--tag", name, "--file", str(file)]
        for key, value in arguments.items():
            words += ["--build-arg", f"{key}={value}"]
        self.run(*words, context, timeout_s=400)

    def build_base(self, name: str, root: Path) -> None:
        """An image of a folder as it is."""
        with tempfile.NamedTemporaryFile("w", suffix=".Dockerfile") as file:
            file.write(_BASE)
            file.flush()
            self.build(name, root, Path(file.name))


class Box:
    """One image, unpacked, with a folder for its volume."""

    def __init__(self, buildah: Buildah, image: str, volume: Path) -> None:
        self.config: dict[str, Any] = json.loads(buildah.run("inspect", "--type", "image", image))["Docker"]["config"]
        self.root = Path(buildah.run("mount", buildah.run("from", "--pull-never", image)))
        self.volume = volume
        (self._volume_at,) = self.config["Volumes"]
        uid, gid = map(int, self.config["User"].split(":"))
        volume.mkdir()
        os.chown(volume, uid, gid)

    def _command(self, program: Sequence[str]) -> list[str]:
        confined = ["/usr/bin/unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER, "sh"]
        return [*confined, str(self.root), self._volume_at, str(self.volume), self.config["User"], *program]

    def _env(self, env: Mapping[str, str]) -> dict[str, str]:
        own = dict(line.split("=", 1) for line in self.config["Env"])
        # The outer programs are found by the machine's path, the inner one by the image's, which comes first.
        return own | {"PATH": f"{own['PATH']}:{os.environ['PATH']}"} | dict(env)

    def run(self, *program: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of the image to its end."""
        command = self._command(program)
        return subprocess.run(command, env=self._env(env), capture_output=True, text=True, check=False, timeout=60)

    def spawn(self, log: Path, **env: str) -> subprocess.Popen[bytes]:
        """Starts what the image starts by itself; its standard output is a pipe."""
        program = [*self.config["Entrypoint"], *self.config["Cmd"]]
        return processes.spawn(self._command(program), log=log, env=self._env(env), stdout=subprocess.PIPE)


def terminate(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM for process 1 within, as an engine sends it; its exit code."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)
    return process.wait(timeout=20)
