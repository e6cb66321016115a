"""The command line of the service, as a program: what it prints, and its exit codes."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(sys.executable).with_name("headwayd")


def headwayd(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "REDIS_", "PRESSURE_"))
    }
    return subprocess.run(
        [str(PROGRAM), *arguments], capture_output=True, text=True, env=clean | env, check=False, timeout=30
    )


def test_version_names_the_program() -> None:
    assert headwayd("version").stdout.startswith("headwayd 0.")


def test_config_shows_values_and_their_origin_with_secrets_masked() -> None:
    done = headwayd("config", "--drain-delay", "5s", HEADWAY_REDIS_URL="redis://:secret@h:1/0")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert rows["drain_delay"] == ["5s", "--drain-delay"]
    assert rows["redis_url"] == ["redis://:***@h:1/0", "HEADWAY_REDIS_URL"]
    assert rows["listen"] == ["127.0.0.1:7420", "default"]
    assert "secret" not in done.stdout + done.stderr


def test_bad_settings_end_with_2_and_name_the_setting() -> None:
    done = headwayd("serve", "--store-timeout", "1h")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("headwayd: --store-timeout: ")


def test_unknown_flags_end_with_2() -> None:
    assert headwayd("serve", "--colour", "red").returncode == 2


def test_check_without_a_service_ends_with_1() -> None:
    done = headwayd("check", "unix:/nowhere/headway.sock", "--timeout", "500ms")
    assert (done.returncode, done.stderr) == (1, "headwayd: unix:/nowhere/headway.sock does not serve\n")


def test_check_asks_where_the_environment_says_also_beyond_this_machine() -> None:
    done = headwayd("check", "--timeout", "500ms", HEADWAY_LISTEN="0.0.0.0:1")
    assert (done.returncode, done.stderr) == (1, "headwayd: 0.0.0.0:1 does not serve\n")


def test_check_with_a_bad_timeout_ends_with_2() -> None:
    assert headwayd("check", "--timeout", "soon").returncode == 2


def test_an_address_that_cannot_be_had_ends_with_1(tmp_path: Path) -> None:
    done = headwayd("serve", "--listen", "127.0.0.1:1", "--listen", "unix:/nowhere/x", HEADWAY_DATA_DIR=str(tmp_path))
    assert done.returncode == 1
    assert "cannot listen on" in done.stderr
    assert "Traceback" not in done.stderr
