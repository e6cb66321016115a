"""The layers of docs/design.md hold, and facts that belong in one file stand in one file."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwayd.domain import names
from headwayd.store import keys

ROOT = Path(__file__).resolve().parents[2]
SERVICE = ROOT / "service" / "headwayd"
LUA = SERVICE / "store" / "lua"
# A colon and a word of pressure's, or Headway's own segment: a key is being spelled.
KEY_SUFFIX = re.compile(
    r":(bound|producer|consumer|producer_free|consumer_free|not_full|closed|x:\w+"
    r"|(stats[:_])?(produced|consumed)_(messages|bytes))\b"
)
WALL_CLOCK = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}


def python_files(*parts: str) -> list[Path]:
    folder = SERVICE.joinpath(*parts)
    found = sorted(folder.rglob("*.py"))
    assert found, f"no Python in {folder}"
    return found


def shown(path: Path) -> str:
    return path.relative_to(SERVICE).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports_of(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used"
            yield node.module or ""


def texts_of(tree: ast.Module) -> Iterator[str]:
    """Every string literal that is not a docstring."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def lua_code(path: Path) -> str:
    """A script without its comments."""
    return re.sub(r"--.*", "", path.read_text())


def test_import_contracts_hold() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", python_files("domain"), ids=shown)
def test_domain_imports_the_standard_library_only(path: Path) -> None:
    foreign = [
        name
        for name in imports_of(tree_of(path))
        if name.split(".")[0] not in sys.stdlib_module_names and not name.startswith("headwayd.domain")
    ]
    assert foreign == []


@pytest.mark.parametrize("path", [*python_files("domain"), *python_files("engine")], ids=shown)
def test_domain_and_engine_know_no_wall_clock(path: Path) -> None:
    tree = tree_of(path)
    used = {
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    by_name = {
        (node.module or "", each.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }
    assert (used | by_name) & WALL_CLOCK == set()


def test_store_time_is_read_in_one_lua_file() -> None:
    callers = [
        path.relative_to(LUA).as_posix()
        for path in LUA.rglob("*.lua")
        if re.search(r"""['"]TIME['"]""", lua_code(path))
    ]
    assert callers == ["include/time.lua"]
    pythons = [shown(path) for path in python_files() if "TIME" in texts_of(tree_of(path))]
    assert pythons == []


def test_keys_are_spelled_in_one_file() -> None:
    spellers = {shown(path) for path in python_files() if any(map(KEY_SUFFIX.search, texts_of(tree_of(path))))}
    spellers |= {shown(path) for path in LUA.rglob("*.lua") if KEY_SUFFIX.search(lua_code(path))}
    # The domain refuses names that end like a key, without asking the store; the next test compares the two.
    assert spellers - {"domain/names.py"} == {"store/keys.py"}


def test_every_key_suffix_is_reserved_in_names() -> None:
    suffixes = {suffix.removeprefix(":") for suffix in [*keys.PRESSURE.values(), *keys.STALE_SUFFIXES] if suffix}
    assert suffixes == set(names.PRESSURE_SUFFIXES)
    assert all(suffix.startswith(f":{names.OWN_SEGMENT}:") for suffix in keys.OWN.values())


def test_statuses_are_set_in_one_file() -> None:
    setters = {
        shown(path)
        for path in python_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in {"StatusCode", "set_code", "abort_with_status"}
    }
    # grpc.health.v1 prescribes its own status for an unknown service; generated code sets one where nobody answers. The
    # bridge only stands in for gRPC's context, and the server of our own is what that context belongs to.
    own_server = {"rpc/core/call.py", "rpc/core/known.py"}
    others = {"rpc/health.py", "rpc/bridge.py", "rpc/keda/externalscaler_pb2_grpc.py"}
    assert setters - others - own_server == {"rpc/status.py"}
