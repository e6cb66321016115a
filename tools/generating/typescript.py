"""Generates the TypeScript client's messages and service descriptions, for Node and browsers alike.

The plug-in comes from npm, at the version that clients/typescript/package-lock.json pins; buf from the development
requirements. Of google.rpc the error details are generated too, from what googleapis-common-protos ships: no npm
package does.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import google.rpc

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = Path("clients/typescript")
KEPT = PACKAGE / "src/gen"
_PLUGIN = Path("node_modules/@bufbuild/protoc-gen-es")
_DETAILS = "error_details.proto"


def missing() -> str | None:
    """Why it cannot be generated here; None if all is there. What npm itself must bring is fetched when generating."""
    absent = [tool for tool in ("node", "npm") if shutil.which(tool) is None]
    return f"no {' and no '.join(absent)} on the path" if absent else None


def generate(into: Path) -> None:
    """Writes what `KEPT` is to hold into a folder that exists."""
    plugin = _plugin()
    _run_buf(ROOT / "proto", plugin, into)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "proto/google/rpc" / _DETAILS
        source.parent.mkdir(parents=True)
        shutil.copyfile(Path(next(iter(google.rpc.__path__))) / _DETAILS, source)
        # Without their comments, which are Google's and say nothing of Headway.
        image = Path(scratch) / "image.binpb"
        _run([_buf(), "build", str(Path(scratch) / "proto"), "--exclude-source-info", "--output", str(image)])
        _run_buf(image, plugin, into)


def _run_buf(source: Path, plugin: Path, into: Path) -> None:
    options = ["target=ts", "import_extension=js"]
    template = {
        "version": "v2",
        "plugins": [{"local": ["node", str(plugin)], "out": str(into), "opt": options}],
    }
    _run([_buf(), "generate", str(source), "--template", json.dumps(template)])


def _plugin() -> Path:
    """The plug-in's program, at the version that is pinned; npm installs it if it is not there."""
    package = ROOT / PACKAGE
    pinned = json.loads((package / "package-lock.json").read_text())["packages"][_PLUGIN.as_posix()]["version"]
    described = package / _PLUGIN / "package.json"
    if not described.exists() or json.loads(described.read_text())["version"] != pinned:
        _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(package)])
    return package / _PLUGIN / "bin/protoc-gen-es"


def _buf() -> str:
    return str(Path(sys.executable).with_name("buf"))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        sys.exit(f"{' '.join(command[:2])}: {done.stderr or done.stdout}")
