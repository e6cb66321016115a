"""Regenerates what is committed but generated: the Python stubs, the reference of the settings, and what the chart says
of them.

With --check it compares and changes nothing.
"""

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import chart
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from stub_types import stub_types

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
PACKAGE = Path("headway/v1")
STUBS = ROOT / "clients/python"
SETTINGS = ROOT / "docs/configuration.md"


def generate_stubs(into: Path) -> None:
    """Writes the stubs of every schema file below `into`."""
    # protoc finds its plug-ins on the path, and they lie beside this interpreter.
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    outputs = [f"--{kind}_out={into}" for kind in ("python", "grpc_python", "mypy")]
    schema = into / "schema.binpb"
    outputs += [f"--descriptor_set_out={schema}", "--include_imports"]
    files = sorted(str(path.relative_to(PROTO)) for path in (PROTO / PACKAGE).glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(PROTO), *outputs, *files]
    # mypy-protobuf tells every file it wrote on stderr: kept for the case that it fails.
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        sys.exit(done.stderr)
    described = FileDescriptorSet.FromString(schema.read_bytes())
    schema.unlink()
    for file in described.file:
        types = stub_types(file, list(described.file))
        if types is not None:
            (into / file.name).with_name(Path(file.name).stem + "_pb2_grpc.pyi").write_text(types)


def generated_names(folder: Path) -> set[str]:
    """The names of generated files in a folder."""
    return {path.name for path in folder.glob("*_pb2*.py*")}


def settings_reference() -> str:
    """The text of docs/configuration.md."""
    command = [str(Path(sys.executable).with_name("headwayd")), "config", "--reference"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def main() -> None:
    """Generates into a temporary folder, then compares or replaces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, change nothing, exit 1 on a difference")
    only_check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        fresh, kept = Path(scratch) / PACKAGE, STUBS / PACKAGE
        generate_stubs(Path(scratch))
        names = sorted(generated_names(fresh) | generated_names(kept))
        _, differing, missing = filecmp.cmpfiles(fresh, kept, names, shallow=False)
        stale = sorted({*differing, *missing})
        texts = {
            SETTINGS: settings_reference(),
            chart.SCHEMA: chart.schema_text(),
            chart.README: chart.readme_text(),
        }
        stale_texts = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
        if only_check:
            wrong = [str(kept.relative_to(ROOT) / name) for name in stale]
            wrong += [str(path.relative_to(ROOT)) for path in stale_texts]
            if wrong:
                sys.exit(f"not as `make gen` would make it: {', '.join(wrong)}")
            return
        for path in stale_texts:
            path.write_text(texts[path])
            print(f"wrote {path.relative_to(ROOT)}")
        for name in stale:
            (kept / name).unlink(missing_ok=True)
            if (fresh / name).exists():
                shutil.copyfile(fresh / name, kept / name)
            print(f"wrote {(kept / name).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
