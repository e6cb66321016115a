"""Generates the Python stubs and their types; protoc and its plug-ins come with the development requirements."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from stub_types import stub_types

ROOT = Path(__file__).resolve().parent.parent.parent
PROTO = ROOT / "proto"
PACKAGE = Path("headway/v1")
KEPT: Path | None = Path("clients/python") / PACKAGE
_BY_HAND = "__init__.py"  # the one file there that is not generated


def missing() -> str | None:
    """Nothing ever is."""
    return None


def generate(into: Path) -> None:
    """Writes the stubs of every schema file into a folder."""
    assert KEPT is not None
    with tempfile.TemporaryDirectory() as scratch:
        _run_protoc(Path(scratch))
        shutil.copytree(Path(scratch) / PACKAGE, into, dirs_exist_ok=True)
    shutil.copyfile(ROOT / KEPT / _BY_HAND, into / _BY_HAND)


def _run_protoc(into: Path) -> None:
    run_protoc(PROTO, sorted(str(path.relative_to(PROTO)) for path in (PROTO / PACKAGE).glob("*.proto")), into)


def run_protoc(root: Path, files: Sequence[str], into: Path) -> None:
    """Writes the stubs and their types of schema files, named from `root`, below a folder, at their paths."""
    # protoc finds its plug-ins on the path, and they lie beside this interpreter.
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    outputs = [f"--{kind}_out={into}" for kind in ("python", "grpc_python", "mypy")]
    schema = into / "schema.binpb"
    outputs += [f"--descriptor_set_out={schema}", "--include_imports"]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(root), *outputs, *files]
    # mypy-protobuf tells every file it wrote on stderr: kept for the case that it fails.
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        sys.exit(done.stderr)
    described = FileDescriptorSet.FromString(schema.read_bytes())
    for file in described.file:
        types = stub_types(file, list(described.file))
        if types is not None:
            (into / file.name).with_name(Path(file.name).stem + "_pb2_grpc.pyi").write_text(types)
