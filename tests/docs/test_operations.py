"""The runbook does what it says: its blocks marked `run` are executed in order, and what needs a cluster is looked at
as far as that goes without one."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from deploy.charts import helm
from docs.blocks import ROOT, blocks_of
from harness import ServiceProcess, StoreServer
from harness.stores import free_port

TEXT = (ROOT / "docs/operations.md").read_text()
BLOCKS = blocks_of(TEXT)
_BLOCK_S = 90
# Of a cluster; what is behind them is not to be seen here.
_CLUSTER = ("kubectl", "helm test")


@pytest.fixture
def programs(tmp_path: Path, fresh_store_server: StoreServer) -> Path:
    """A folder with the store's own programs under the names that the runbook has for them."""
    command_line = shutil.which("valkey-cli") or shutil.which("redis-cli")
    if command_line is None or shutil.which("pgrep") is None:
        reason = "pgrep, or valkey-cli and redis-cli, are not on the path"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "valkey-cli").symlink_to(command_line)
    (folder / "valkey-server").symlink_to(fresh_store_server.program)
    return folder


class Shell:
    """Runs blocks in one folder. What they leave running is ended with it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self._environment = environment
        self._groups: list[int] = []

    def run(self, text: str) -> str:
        """What a block prints. Fails if it does."""
        output = self.folder / "output"
        with output.open("w") as file:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._groups.append(process.pid)
            code = process.wait(_BLOCK_S)
        printed = output.read_text(errors="replace")  # SLOWLOG shows arguments, which may be anything
        assert code == 0, f"{text}\nended with {code}\n{printed}"
        return printed

    def close(self) -> None:
        """Ends what still runs."""
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


@pytest.fixture
def environment(
    fresh_store_server: StoreServer, make_service: Callable[..., ServiceProcess], programs: Path
) -> dict[str, str]:
    """As the runbook says that it is run."""
    service = make_service(HEADWAY_REDIS_URL=fresh_store_server.url)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    foreign = ("HEADWAY_", "REDIS_", "PRESSURE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | {
        "HEADWAY_ADDRESS": service.address,
        "HEADWAY_REDIS_URL": fresh_store_server.url,
        "RESTORE_PORT": str(free_port()),
        "CHECK_PORT": str(free_port()),
        "PATH": path,
    }


@pytest.fixture
def shell(environment: dict[str, str], tmp_path: Path) -> Iterator[Shell]:
    """In that environment."""
    folder = tmp_path / "runbook"
    folder.mkdir()
    made = Shell(folder, environment)
    yield made
    made.close()


@pytest.mark.slow
def test_every_block_marked_run_does_what_the_runbook_says(shell: Shell, tmp_path: Path) -> None:
    for payload in ("one", "two", "three"):
        shell.run(f"headway put mails {payload}")
    shell.run("headway get mails --ack")
    printed = [shell.run(block.text) for block in BLOCKS if block.is_run]
    assert len(printed) >= 6
    assert "serves" in printed[0]
    # What was there at the backup is there again, and whole.
    assert re.search(r"^mails\s+2\b", printed[-1], re.MULTILINE), printed[-1]
    # What the server kept outlasts its end.
    assert list((tmp_path / "runbook/restored/appendonlydir").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("has_own_store", [False, True], ids=["embedded", "own"])
def test_a_rolling_restart_of_workers_refuses_nobody(
    shell: Shell, environment: dict[str, str], short_dir: Path, *, has_own_store: bool
) -> None:
    if not has_own_store:
        del environment["HEADWAY_REDIS_URL"]
        environment["HEADWAY_DATA_DIR"] = str(short_dir)
    [block] = [each.text for each in BLOCKS if each.is_run and "--workers" in each.text]
    refused: list[float] = []
    line, log, is_over = shell.folder / "line", shell.folder / "log", threading.Event()

    def connect() -> None:
        while not is_over.wait(0.01):
            served = re.search(r"serving on 127\.0\.0\.1:(\d+)", line.read_text() if line.exists() else "")
            if served:
                try:
                    socket.create_connection(("127.0.0.1", int(served[1])), timeout=5).close()
                except OSError:  # at once if nobody listens; but between two lines this process may stand still
                    refused.append(time.time())

    asking = threading.Thread(target=connect)
    asking.start()
    try:
        shell.run(block)
    finally:
        is_over.set()
        asking.join()
    told = log.read_text()
    ends = re.search(r"^(\S+) .* told to stop .*\[headwayd\.supervisor\]", told, re.MULTILINE)
    assert ends, told
    ended_at = datetime.fromisoformat(ends[1]).timestamp()
    assert [at for at in refused if at < ended_at] == []
    assert told.count("worker ended, starting another") == 2
    assert "store died" not in told


def page() -> str:
    """The runbook that fits on one page."""
    return TEXT.partition("\n## On one page\n")[2].partition("\n## ")[0]


def commands_of_page() -> list[str]:
    """Every command in the last column of its table."""
    cells = [line.rstrip("| ").rpartition(" | ")[2] for line in page().splitlines() if line.startswith("| ")]
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell) if " " in code]


def test_the_page_is_one() -> None:
    lines = page().splitlines()
    assert sum(1 + len(line) // 160 for line in lines) <= 50


@pytest.mark.slow
def test_every_command_of_the_page_can_be_given(shell: Shell) -> None:
    """In order, on a queue in which there is something of everything."""
    shell.run("headway create mails --max-attempts 1 --lease 1s")
    for payload in ("one", "two", "three"):
        shell.run(f"headway put mails {payload}")
    shell.run("headway get mails >/dev/null; until headway --json dead mails | grep --quiet cause; do sleep 0.2; done")
    run = [command for command in commands_of_page() if not command.startswith("kubectl ")]
    printed = {command: shell.run(command.replace("QUEUE", "mails")) for command in run}
    assert len(printed) >= 15
    assert "lapsed" in printed["headway dead QUEUE"]
    assert "PONG" in printed['valkey-cli -u "$HEADWAY_REDIS_URL" ping']


@pytest.mark.slow
def test_the_stores_own_commands_can_be_given_by_the_user_that_is_made_for_them(
    shell: Shell, environment: dict[str, str], fresh_store_server: StoreServer
) -> None:
    line = re.search(r"^    ACL SETUSER keeper on >SECRET (.+)$", TEXT, re.MULTILINE)
    assert line is not None
    with fresh_store_server.client() as client:
        client.acl_setuser("keeper", enabled=True, passwords="+s3cret", commands=line[1].split())
        environment["HEADWAY_REDIS_URL"] = f"redis://keeper:s3cret@127.0.0.1:{fresh_store_server.port}/0"
        said = [command for command in commands_of_page() if command.startswith("valkey-cli ")]
        assert len(said) >= 5
        for command in said:
            assert "NOPERM" not in shell.run(command)
        assert [entry["object"] for entry in client.acl_log()] == []


def commands() -> list[str]:
    """Every command of the blocks that are not run."""
    found = [block.text.replace("\\\n", " ") for block in BLOCKS if block.words == ("sh",)]
    return [line.strip() for text in found for line in text.splitlines() if line.strip()]


def test_every_other_command_needs_a_cluster() -> None:
    assert commands()
    for command in commands():
        assert command.startswith((*_CLUSTER, "helm upgrade")), command


@pytest.mark.parametrize("command", [each for each in commands() if each.startswith("helm upgrade")])
def test_the_chart_takes_the_values_that_the_runbook_says(command: str) -> None:
    words = shlex.split(command)[2:]
    assert words[:2] == ["hw", "helm/headway"]
    known = set(re.findall(r"--[a-z-]+", helm("upgrade", "--help").stdout))
    assert {word for word in words if word.startswith("--")} <= known
    said = [word for option in pairwise(words) if option[0].startswith("--set") for word in option]
    assert said
    values = ROOT / "helm/headway/ci/url-values.yaml"
    done = helm("template", "hw", ROOT / "helm/headway", "--values", values, *said)
    assert done.returncode == 0, done.stderr


def test_objects_are_called_as_the_chart_calls_them() -> None:
    made = helm("template", "hw", ROOT / "helm/headway", "--values", ROOT / "helm/headway/ci/url-values.yaml").stdout
    for kind, name in re.findall(r"kubectl [^`\n]*?\b(deployment)/(\S+?)[`\s]", TEXT):
        assert f"kind: {kind.title()}\nmetadata:\n  name: {name}\n" in made or name == "NAME"
