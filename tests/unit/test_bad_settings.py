"""Every setting, set wrong: `headwayd serve` ends at once with one line that names the setting, never with a trace."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_origin

import pytest
from annotated_types import Ge, Le
from pydantic.fields import FieldInfo
from redis.asyncio.connection import AbstractConnection
from typer.testing import CliRunner

from headwayd.cli import cli
from headwayd.config.names import PRESSURE_NAMES, flag_of, variable_of
from headwayd.config.settings import Settings
from headwayd.config.values import format_span
from headwayd.store.address import Kind, parse_address
from headwayd.store.connections import ConnectionSource

NOT_UTF8 = "a\udcffb"  # as Python shows it
# Of those whose type does not tell what is wrong for them.
BAD_TEXTS = {
    "listen": ["nowhere", "unix:", "127.0.0.1:65536", "::1:80", "127.0.0.1:0,"],
    "http_listen": ["nowhere", "unix:/s", "127.0.0.1:65536", ""],
    "http_hosts": ["http://x", "x:80", "x y", "x,/"],
    "http_origins": ["jobs.example", "ftp://x", "https://", "https://x/path", "https://x, y"],
    "otlp_endpoint": [
        "nowhere",
        "grpc://a:1",
        "http://",
        "http://a:port",
        "http://user:secret@a:1",
        "http://a:1/v1",
        "",
    ],
    "redis_url": [
        "http://a",
        "redis://",
        "unix://",
        "redis://[::1",
        "redis://a:port",
        "redis://a:65536",
        "redis://a/mail",
        "redis://a/65536",
        "redis://a?db=x",
        "redis://a?db=-1",
        "redis://a?colour=red",
        "redis://a?socket_timeout=5",
        "redis://a?ssl_certfile=b",
        "unix:///s?db=x",
        "redis://a:1,b:2",
        "redis+sentinel://a:1,b:2",
        "redis+sentinel://a:1,:2/mail",
        "redis+sentinel://a:1,b:x/mail",
        "redis+sentinel://a/mail/x",
        "redis+sentinel://a/mail?ssl_certfile=b",
        "redis+cluster://",
        "redis+cluster://a/1",
        "redis+cluster://a?sentinel_password=b",
        "redis+other://a",
    ],
    "redis_password_file": ["", "/nowhere/at/all", "/dev/null"],
    "redis_sentinel_password_file": ["", "/nowhere/at/all", "/dev/null"],
    "redis_server": ["a b", "a/b", "user@host"],
    "prefix": ["", "{a}", "a\n", "x" * 101],
    "data_dir": ["", "~nobody-of-this-name/data"],
    "tls_cert": [""],
    "tls_key": [""],
    "tls_client_ca": [""],
    "auth_file": [""],
    "jwt_jwks": ["", "ftp://a/keys", "https://", "https://user@a/keys", "https://user:secret@a/keys"],
    "jwt_issuer": [""],
    "jwt_audience": [""],
    "jwt_algorithms": ["", "none", "HS256", "RS256,HS512", "rs256"],
    "jwt_roles_claim": [""],
    "jwt_namespace_claim": [],
    "jwt_queues_claim": [],
}


def bad_values(name: str, field: FieldInfo) -> list[str]:
    """Texts that this setting must refuse: of another type, and just beyond its bounds."""
    kind: Any = field.annotation
    if kind is bool:
        return ["perhaps", ""]
    if get_origin(kind) is Literal:
        return ["loud", "", "INFO"]
    bounds: list[Any] = [rule.ge for rule in field.metadata if isinstance(rule, Ge)]
    bounds += [rule.le for rule in field.metadata if isinstance(rule, Le)]
    if kind is timedelta:
        low, high = bounds
        beyond = [format_span(high + timedelta(milliseconds=1)), "9999999999999d", "9" * 400]
        below = [format_span(low - timedelta(milliseconds=1))] if low else ["-1s"]
        return ["soon", "", "1h30m", *below, *beyond]
    if kind is float:
        low, high = bounds
        return ["many", "", "nan", str(low - 0.001), str(high + 0.001)]
    if kind is int or kind == int | None:
        low, high = bounds
        return ["many", "", "1.5", str(low - 1), str(high + 1), "9" * 5_000]
    return [*BAD_TEXTS[name], NOT_UTF8]


CASES = [
    pytest.param(name, value, id=f"{name}={ascii(value)[:30]}")
    for name, field in Settings.model_fields.items()
    for value in bad_values(name, field)
]


@pytest.fixture(autouse=True)
def _nothing_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise AssertionError("served with it")

    monkeypatch.setattr("headwayd.app.run", run)
    for name in Settings.model_fields:
        monkeypatch.delenv(variable_of(name), raising=False)
    for name in PRESSURE_NAMES.values():
        monkeypatch.delenv(name, raising=False)


def refused_line(arguments: list[str], env: dict[str, str]) -> str:
    """The one line with which it ended."""
    done = CliRunner().invoke(cli, ["serve", *arguments], env=env, prog_name="headwayd")
    assert isinstance(done.exception, SystemExit), done.exception
    assert (done.exit_code, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(("name", "value"), CASES)
def test_a_bad_setting_ends_the_start_with_2_and_one_line_that_names_it(name: str, value: str) -> None:
    for variable in filter(None, (variable_of(name), PRESSURE_NAMES.get(name))):
        line = refused_line([], {variable: value})
        assert line.startswith(f"headwayd: {variable}: ")
    if Settings.model_fields[name].annotation is not bool:
        line = refused_line([f"{flag_of(name)}={value}"], {})
        assert line.startswith(f"headwayd: {flag_of(name)}: ")


def test_a_value_beyond_its_bounds_is_told_the_bound_in_words_of_its_own() -> None:
    assert refused_line(["--max-lease=99ms"], {}) == "headwayd: --max-lease: must be at least 100ms"
    assert refused_line(["--drain-delay=6m"], {}) == "headwayd: --drain-delay: must be at most 5m"
    assert refused_line(["--redis-port=0"], {}) == "headwayd: --redis-port: must be at least 1"


def test_a_password_in_a_bad_url_is_not_shown() -> None:
    assert "secret" not in refused_line(["--redis-url=redis://:secret@a:port"], {})
    assert "secret" not in refused_line(["--redis-url=redis://a?passwort=secret"], {})
    assert "secret" not in refused_line(["--redis-url=redis+sentinel://:secret@a:1,b:port/mail"], {})


@pytest.mark.parametrize(
    "url",
    [
        "redis://a:1/65535",
        "redis://a?db=3&username=u&password=p",
        "unix:///s?db=3&username=u&password=p",
        "rediss://a?ssl_ca_certs=a&ssl_ca_path=b&ssl_certfile=c&ssl_keyfile=d&ssl_password=e",
        "rediss://a?ssl_cert_reqs=none&ssl_check_hostname=false",
        "redis+sentinel://u:p@a,b:1/mail/3?sentinel_username=u&sentinel_password=p",
        "rediss+sentinel://a/mail?ssl_ca_certs=a&db=3",
        "redis+cluster://:p@a,b:1",
        "rediss+cluster://a?ssl_ca_certs=a",
    ],
)
def test_every_option_that_a_url_may_have_is_one_that_connections_know(url: str) -> None:
    settings = Settings.load({"redis_url": url})
    address = parse_address(str(settings.store_url))
    at = None if address.kind is Kind.ONE else address.hosts[0]
    source = ConnectionSource(address, call_timeout_s=1.0, at=at)
    assert isinstance(source._class(**source._options), AbstractConnection)


def test_a_file_of_a_password_needs_somebody_who_asks_for_it(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    said = "needs Sentinels: name them with redis_url"
    assert said in refused_line([f"--redis-sentinel-password-file={file}", "--redis-url=redis://a"], {})
    assert "needs a server: name it with redis_url" in refused_line([f"--redis-password-file={file}"], {})
