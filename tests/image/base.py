"""A base image made of this machine, standing in for the public one: the Python that runs the tests, laid out as there.

It has what the Dockerfile uses of its base and no more: Python with pip below /usr/local, a shell, mkdir, certificates.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

TOOLS = ("sh", "mkdir")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
# What wheels may rely on beside it (PEP 600), and what the C library loads by name.
_PROMISED = """
    libm.so.6 libdl.so.2 librt.so.1 libpthread.so.0 libutil.so.1 libresolv.so.2 libgcc_s.so.1 libstdc++.so.6
    libnss_dns.so.2 libnss_files.so.2
""".split()
_UNUSED = ("site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "__pycache__", "config-3*")


def make_base(root: Path) -> None:
    """Fills the folder `root`. The packages of this machine's Python stay behind, but for pip."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = Path(sys.base_prefix) / "bin" / version
    library = Path(sys.base_prefix) / "lib" / version
    target = root / "usr/local"
    (target / "bin").mkdir(parents=True)
    shutil.copy(python.resolve(), target / "bin" / version)
    for name in ("python3", "python"):
        (target / "bin" / name).symlink_to(version)
    shutil.copytree(library, target / "lib" / version, ignore=shutil.ignore_patterns(*_UNUSED), symlinks=True)
    for name in ("pip", "setuptools"):  # setuptools: pip of 3.11 asks for it while it is there
        for found in (library / "site-packages").glob(f"{name}*"):
            if found.is_dir():
                shutil.copytree(found, target / "lib" / version / "site-packages" / found.name)
    (root / "bin").mkdir()
    tools = [Path(shutil.which(name) or name).resolve() for name in TOOLS]
    for name, tool in zip(TOOLS, tools, strict=True):
        shutil.copy(tool, root / "bin" / name)
    extensions = (library / "lib-dynload").glob("*.so")
    _copy_libraries([python.resolve(), *tools, *extensions], root)
    for folder in ("tmp", "proc", "dev", "var/lib", "etc/ssl/certs", "root"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    if _CERTIFICATES.exists():
        shutil.copy(_CERTIFICATES, root / "etc/ssl/certs")
    (root / "etc/pip.conf").write_text(_pip_configuration())


def _copy_libraries(programs: Iterable[Path], root: Path) -> None:
    """Everything that the programs are linked with, into /lib, where the loader always looks."""
    found: set[Path] = set()
    for program in programs:
        linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True, timeout=30).stdout
        found |= {Path(path) for path in _LIBRARY.findall(linked)}
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True, timeout=30).stdout
    for name in _PROMISED:
        if match := re.search(rf"{re.escape(name)} \(libc6,[^)]*\) => (\S+)", listed):
            found.add(Path(match[1]))
    (root / "lib").mkdir()
    for path in found:
        shutil.copy(path.resolve(), root / "lib" / path.name)
        if path.name.startswith("ld-"):  # programs name it by its whole path
            (root / path.parent.relative_to("/")).mkdir(parents=True, exist_ok=True)
            shutil.copy(path.resolve(), root / path.relative_to("/"))


def _pip_configuration() -> str:
    """Where this machine's pip finds packages, and what it trusts."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    pairs = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    wanted = ("index-url", "extra-index-url", "trusted-host", "cert", "proxy")
    return "[global]\n" + "".join(f"{name} = {pairs[name]}\n" for name in wanted if name in pairs)
