"""Settings: where they come from, which win, what is refused, and that no secret is shown."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwayd.config import reference
from headwayd.config.names import origin_of
from headwayd.config.settings import BadSettings, Settings
from headwayd.config.store_settings import _data_folder
from headwayd.config.values import format_span, masked_url, parse_span
from headwayd.domain.limits import Limits

GIB = 1024 * 1024 * 1024
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*map(str.upper, Settings.model_fields)]:
        monkeypatch.delenv(f"HEADWAY_{name}", raising=False)
    for name in ("REDIS_SERVER", "REDIS_PORT", "REDIS_DB", "PRESSURE_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("headwayd.config.capacity_settings.granted_bytes", lambda: 64 * GIB)


def refusal(**flags: object) -> str:
    with pytest.raises(BadSettings) as caught:
        Settings.load(flags)
    return str(caught.value)


def test_without_settings_the_store_is_embedded_and_limits_are_the_domains() -> None:
    settings = Settings.load()
    assert settings.store_url is None
    assert settings.limits == Limits()
    assert settings.prefix == "__pressure__"


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({"REDIS_SERVER": "cache"}, "redis://cache:6379/0"),
        ({"REDIS_PORT": "7000"}, "redis://localhost:7000/0"),
        ({"REDIS_DB": "0"}, "redis://localhost:6379/0"),
        ({"REDIS_SERVER": "::1", "REDIS_DB": "3"}, "redis://[::1]:6379/3"),
        ({"HEADWAY_REDIS_URL": "rediss://cache:1/2"}, "rediss://cache:1/2"),
        ({"HEADWAY_REDIS_URL": "unix:///run/s?db=1"}, "unix:///run/s?db=1"),
        ({"HEADWAY_REDIS_URL": "redis://a:1", "REDIS_SERVER": "b"}, "redis://a:1"),
        ({"HEADWAY_REDIS_URL": "redis://a:1", "REDIS_PORT": "tcp://10.0.0.1:6379"}, "redis://a:1"),
    ],
)
def test_any_redis_setting_means_that_server_and_never_the_embedded_store(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Settings.load().store_url == url


@pytest.mark.parametrize("name", ["HEADWAY_REDIS_URL", "REDIS_SERVER", "REDIS_PORT", "REDIS_DB", "PRESSURE_PREFIX"])
def test_an_empty_variable_is_refused_and_not_taken_for_unset(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "")
    assert refusal().startswith(f"{name}: ")


def test_a_port_made_by_kubernetes_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_PORT", "tcp://10.0.0.1:6379")
    assert "enableServiceLinks" in refusal()


@pytest.mark.parametrize("url", ["http://a", "redis://", "unix://", "a:6379", "redis:///0"])
def test_urls_that_name_no_store_are_refused(url: str) -> None:
    assert refusal(redis_url=url).startswith("--redis-url: ")


def test_flags_win_over_environment_over_pressures_names_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (Settings.load().prefix, origin_of("prefix", {})) == ("__pressure__", "default")
    monkeypatch.setenv("PRESSURE_PREFIX", "a")
    assert (Settings.load().prefix, origin_of("prefix", {})) == ("a", "PRESSURE_PREFIX")
    monkeypatch.setenv("HEADWAY_PREFIX", "b")
    assert (Settings.load().prefix, origin_of("prefix", {})) == ("b", "HEADWAY_PREFIX")
    assert Settings.load({"prefix": "c"}).prefix == "c"
    assert origin_of("prefix", {"prefix": "c"}) == "--prefix"


def test_several_addresses_by_comma_or_by_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_LISTEN", "127.0.0.1:0, unix:/run/h")
    assert Settings.load().listen == ("127.0.0.1:0", "unix:/run/h")
    assert Settings.load({"listen": ["[::1]:1", "localhost:2"]}).listen == ("[::1]:1", "localhost:2")


@pytest.mark.parametrize("address", ["", "127.0.0.1", ":7420", "a:65536", "a:-1", "::1:80", "unix:", "a:٣"])
def test_what_is_no_address_is_refused(address: str) -> None:
    assert refusal(listen=[address]).startswith("--listen: ")


@pytest.mark.parametrize(
    ("written", "as_browsers_say_it"),
    [
        ("https://Shop.Example", "https://shop.example"),
        ("https://shop.example:443", "https://shop.example"),
        ("http://shop.example:80", "http://shop.example"),
        ("https://shop.example:80", "https://shop.example:80"),
        ("http://[::80]:8080", "http://[::80]:8080"),
        ("*", "*"),
    ],
)
def test_origins_are_compared_as_browsers_say_them(written: str, as_browsers_say_it: str) -> None:
    assert Settings.load({"http_origins": written}).http_origins == (as_browsers_say_it,)


def test_several_workers_cannot_share_a_unix_socket() -> None:
    listen = ["127.0.0.1:0", "unix:/run/h"]
    assert "unix:/run/h can be served by one process only" in refusal(workers="2", listen=listen)
    assert Settings.load({"workers": "1", "listen": listen}).workers == 1


@pytest.mark.parametrize("address", ["0.0.0.0:7420", "[::]:7420", "192.0.2.1:7420", "example.org:7420"])
def test_listening_beyond_this_machine_needs_a_word(address: str) -> None:
    assert "--insecure" in refusal(listen=[address])
    assert Settings.load({"listen": [address], "insecure": True}).listen == (address,)


@pytest.mark.parametrize(
    ("field", "low", "high", "step"),
    [
        ("store_timeout", timedelta(milliseconds=50), timedelta(seconds=2), timedelta(milliseconds=1)),
        ("drain_delay", timedelta(0), timedelta(minutes=5), timedelta(milliseconds=1)),
        ("shutdown_grace", timedelta(0), timedelta(minutes=5), timedelta(milliseconds=1)),
        ("max_batch_messages", 1, 5_000, 1),
        ("max_message_bytes", 1024, 3 * 1024 * 1024, 1),  # at most an answer's bytes
        ("max_response_bytes", 1024 * 1024, 256 * 1024 * 1024, 1),  # at least a message's
        ("redis_port", 1, 65_535, 1),
        ("workers", 1, 64, 1),
    ],
)
def test_bounds_are_inclusive_and_beyond_is_refused(field: str, low: object, high: object, step: object) -> None:
    assert getattr(Settings.load({field: low}), field) == low
    assert getattr(Settings.load({field: high}), field) == high
    assert refusal(**{field: low - step})  # type: ignore[operator]
    assert refusal(**{field: high + step})  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "span"),
    [("500ms", timedelta(milliseconds=500)), ("1.5s", timedelta(seconds=1.5)), ("2", timedelta(seconds=2))],
)
def test_spans_are_read_as_written(text: str, span: timedelta) -> None:
    assert parse_span(text) == span


@pytest.mark.parametrize("text", ["", "5 weeks", "-1s", "1e3", "s", "1s2s"])
def test_what_is_no_span_is_refused(text: str) -> None:
    assert refusal(drain_delay=text).startswith("--drain-delay: ")


@given(st.integers(0, 10**12))
def test_a_span_is_shown_as_it_is_read(milliseconds: int) -> None:
    span = timedelta(milliseconds=milliseconds)
    assert parse_span(format_span(span)) == span


@pytest.mark.parametrize("prefix", ["", "a\n", "{a}", "x" * 101])
def test_prefixes_that_would_break_keys_are_refused(prefix: str) -> None:
    assert refusal(prefix=prefix).startswith("--prefix: ")


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://user:secret@h:1/0", "redis://user:***@h:1/0"),
        ("rediss://:secret@h/0", "rediss://:***@h/0"),
        ("unix:///s?db=0&password=secret", "unix:///s?db=0&password=***"),
        ("redis://user:sec@ret@h:1/0", "redis://user:***@h:1/0"),
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://h:1/0?p%61ssword=secret&db=0", "redis://h:1/0?p%61ssword=***&db=0"),
    ],
)
def test_passwords_are_never_shown(url: str, masked: str) -> None:
    assert masked_url(url) == masked
    settings = Settings.load({"redis_url": url})
    assert "secret" not in repr(settings)
    assert ("redis_url", masked, "--redis-url") in reference.effective(settings, {"redis_url": url})


def test_what_stands_behind_the_address_of_keys_is_not_shown() -> None:
    signed = {"jwt_jwks": "https://h/keys?key=secret&v=secret", "jwt_issuer": "i", "jwt_audience": "a"}
    settings = Settings.load(signed)
    assert ("jwt_jwks", "https://h/keys?key=***&v=***", "--jwt-jwks") in reference.effective(settings, signed)
    assert (
        refusal(**signed | {"jwt_jwks": "https://user:secret@h/keys"})
        == "--jwt-jwks: must name no user: it would not be sent"
    )


def test_a_range_in_the_reference_has_both_ends() -> None:
    ranges = [row.split(" | ")[2] for row in reference.markdown().splitlines() if row.startswith("| `--")]
    assert [each for each in ranges if re.search(r"\bto\b", each) and not re.search(r"\S to [^ ]*\d", each)] == []


def test_the_reference_of_settings_is_up_to_date() -> None:
    assert (ROOT / "docs/configuration.md").read_text() == reference.markdown()


def test_a_user_without_a_home_needs_a_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_arguments: object, **_options: object) -> str:
        raise RuntimeError("no home")

    monkeypatch.setattr("platformdirs.user_data_dir", nobody)
    monkeypatch.setattr("pathlib.Path.expanduser", nobody)
    folder = _data_folder()
    with pytest.raises(ValueError, match="nobody who is known"):
        Settings._check_data_dir(folder)
