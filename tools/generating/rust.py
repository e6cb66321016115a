"""Makes the Rust messages and stubs, with the small crate beside the client, which needs no protoc."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROTO = ROOT / "proto"
GENERATOR = ROOT / "clients/rust/generate/Cargo.toml"
KEPT = Path("clients/rust/src/generated")

# Stays, so that the next time has little to build.
_TARGET = ROOT / "build/generate-rust"


def missing() -> str | None:
    """Why the stubs cannot be made here; None if they can."""
    return None if shutil.which("cargo") else "cargo is not on the path"


def generate(into: Path) -> None:
    """Writes the messages and stubs of every schema file into `into`."""
    into.mkdir(parents=True, exist_ok=True)
    cargo = ["cargo", "run", "--quiet", "--manifest-path", str(GENERATOR), "--target-dir", str(_TARGET)]
    command = [*cargo, "--", str(PROTO), str(into)]
    # What is downloaded and built is told on stderr: kept for the case that it fails.
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        sys.exit(done.stderr)
