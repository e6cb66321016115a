"""Makes the Go stubs, with buf and the plug-ins of Go's own registry at pinned versions."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROTO = ROOT / "proto"
KEPT: Path | None = Path("clients/go/headwaypb")

# The version of google.golang.org/protobuf in clients/go/go.mod must be no older than the first. Newer releases of the
# second ask for a newer Go than the module does.
_PLUGINS = (
    "google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.11",
    "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.1",
)
_MODULE = "headway.dev/go/headwaypb"  # the schema's go_package


def missing() -> str | None:
    """Why the stubs cannot be made here; None if they can."""
    return None if shutil.which("go") else "go is not on the path"


def generate(into: Path) -> None:
    """Writes the stubs of every schema file into `into`."""
    into.mkdir(parents=True, exist_ok=True)
    template = {
        "version": "v2",
        "plugins": [
            {"local": ["go", "run", plugin], "out": str(into), "opt": [f"module={_MODULE}"]} for plugin in _PLUGINS
        ],
    }
    command = [str(Path(sys.executable).with_name("buf")), "generate", "--template", json.dumps(template)]
    # Downloads of the plug-ins are told on stderr: kept for the case that it fails.
    done = subprocess.run(command, cwd=PROTO, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        sys.exit(done.stderr)
