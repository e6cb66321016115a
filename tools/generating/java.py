"""Java generates its gRPC code in its own build, with a protoc that Maven brings; nothing of it is committed."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CLIENT = ROOT / "clients/java"
KEPT: Path | None = None
_TIMEOUT_S = 600  # the first time Maven fetches its plug-ins


def missing() -> str | None:
    """Whether Maven or a JDK is absent."""
    for command in ("mvn", "javac"):
        if shutil.which(command) is None:
            return f"{command} is not on the path"
    return None


def generate(into: Path) -> None:
    """Writes the code that a build of the client would generate; `make gen` need not, for none is kept."""
    command = ["mvn", "-q", "-B", "-ntp", "-f", str(CLIENT), "clean", "generate-sources"]
    subprocess.run(command, check=True, timeout=_TIMEOUT_S)
    shutil.copytree(CLIENT / "target/generated-sources/protobuf", into, dirs_exist_ok=True)
