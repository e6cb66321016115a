"""Regenerates what is committed but generated: the stubs, Python's tree of errors, the reference of the settings, what
the chart says of them, its dashboard, and the table of metrics.

With --check it compares and changes nothing. A language whose toolchain is not here is left as it is, and named; under
CI=true that is an error.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import chart
import dashboard
import error_kinds
from generating import Generating, languages

from headwayd.telemetry import metric_names

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = ROOT / "docs/configuration.md"
METRICS = ROOT / "docs/metrics.md"
METRICS_BEGIN = "<!-- made from service/headwayd/telemetry/metric_names.py by `make gen` -->\n"
METRICS_END = "<!-- end -->\n"


def settings_reference() -> str:
    """The text of docs/configuration.md."""
    command = [str(Path(sys.executable).with_name("headwayd")), "config", "--reference"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def metrics_text() -> str:
    """The text of docs/metrics.md: the one that is there, with the table of now."""
    head, _, rest = METRICS.read_text().partition(METRICS_BEGIN)
    return head + METRICS_BEGIN + metric_names.markdown() + METRICS_END + rest.partition(METRICS_END)[2]


def texts() -> dict[Path, bytes | None]:
    """What single files should hold."""
    made = {SETTINGS: settings_reference(), METRICS: metrics_text()}
    made |= {error_kinds.KEPT: error_kinds.text()}
    made |= {chart.SCHEMA: chart.schema_text(), chart.README: chart.readme_text()}
    made[dashboard.PATH] = dashboard.text()
    return {path: text.encode() for path, text in made.items()}


def stubs(name: str, language: Generating) -> dict[Path, bytes | None]:
    """What the files of a client's generated folder should hold; None: it should not be there."""
    if language.KEPT is None:
        return {}
    reason = language.missing()
    if reason is not None:
        if os.environ.get("CI") == "true":
            sys.exit(f"{name}: {reason}")
        print(f"skipped {name}: {reason}")
        return {}
    kept = ROOT / language.KEPT
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        language.generate(fresh)
        wanted: dict[Path, bytes | None] = dict.fromkeys(kept / each for each in _files(kept))
        return wanted | {kept / each: (fresh / each).read_bytes() for each in _files(fresh)}


def _files(folder: Path) -> list[Path]:
    """Every file below a folder, but Python's caches."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return [path for path in found if "__pycache__" not in path.parts]


def main() -> None:
    """Generates, then compares or replaces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, change nothing, exit 1 on a difference")
    only_check = parser.parse_args().check
    wanted = texts()
    for name, language in languages().items():
        wanted |= stubs(name, language)
    stale = [path for path, data in wanted.items() if (path.read_bytes() if path.exists() else None) != data]
    if only_check and stale:
        sys.exit(f"not as `make gen` would make it: {', '.join(str(path.relative_to(ROOT)) for path in stale)}")
    for path in () if only_check else stale:
        data = wanted[path]
        if data is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        print(f"{'removed' if data is None else 'wrote'} {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
