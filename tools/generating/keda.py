"""Generates the stubs of KEDA's interface, which the service serves and no client of ours calls."""

import shutil
import tempfile
from pathlib import Path

from generating.python import run_protoc

ROOT = Path(__file__).resolve().parent.parent.parent
SERVICE = ROOT / "service"
PACKAGE = Path("headwayd/rpc/keda")
KEPT: Path | None = Path("service") / PACKAGE
_SCHEMA = "externalscaler.proto"
_BY_HAND = ("__init__.py", _SCHEMA)


def missing() -> str | None:
    """Nothing ever is."""
    return None


def generate(into: Path) -> None:
    """Writes the stubs into a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        run_protoc(SERVICE, [str(PACKAGE / _SCHEMA)], Path(scratch))
        shutil.copytree(Path(scratch) / PACKAGE, into, dirs_exist_ok=True)
    for name in _BY_HAND:
        shutil.copyfile(SERVICE / PACKAGE / name, into / name)
