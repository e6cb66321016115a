"""Signed tokens: which hold, what their claims mean, and where the keys come from."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
import structlog
from cryptography.exceptions import UnsupportedAlgorithm

from headwayd.access.access import Access
from headwayd.access.fetching import FetchFailed, fetched
from headwayd.access.jwks import KeyFile, KeyUrl
from headwayd.access.signed import SignedRules, SignedTokens
from headwayd.access.watched import AccessFailed
from headwayd.domain.access import CallerRole
from headwayd.domain.errors import Unauthenticated
from security.callers import Caller, write_callers
from security.issuer import AUDIENCE, ISSUER, SigningKey, dripping_server, key_server, key_set, unsigned

pytestmark = pytest.mark.any_store

KEY = SigningKey()
RULES: dict[str, Any] = {
    "issuer": ISSUER,
    "audience": AUDIENCE,
    "algorithms": ("RS256", "ES256", "EdDSA"),
    "roles_claim": "roles",
}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_text(key_set(KEY))
    return path


def write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def tokens(key_file: Path, **rules: object) -> SignedTokens:
    return SignedTokens(SignedRules(**RULES | rules), KeyFile(key_file))


ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "EdDSA")


@pytest.mark.parametrize("names_it", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_sound_token_says_who_calls(tmp_path: Path, algorithm: str, names_it: bool) -> None:
    key = SigningKey(algorithm=algorithm, names=algorithm if names_it else "")
    path = tmp_path / "keys.json"
    path.write_text(key_set(key))
    expires_at = int(time.time()) + 60
    token = key.token(exp=expires_at, roles=["producer", "watcher", "boss"])
    identity = await tokens(path, algorithms=ALGORITHMS).identify(token)
    assert (identity.name, identity.namespace) == ("somebody", "default")
    assert identity.roles_on("anything") == CallerRole.PRODUCER | CallerRole.WATCHER
    assert identity.expires_at == expires_at + 10


def unsound() -> dict[str, str]:
    now = time.time()
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "x", "exp": now + 60, "roles": ["admin"]}
    sound = KEY.token()
    head, body, signature = sound.split(".")
    other = SigningKey()  # another key by the same id
    secret = KEY.public_pem
    return {
        "nothing": "",
        "no token": "abc",
        "two dots": "..",
        "too long": "a" * 10_000,
        "not UTF-8 in base64": "_w.e30.x",
        "another key": other.token(),
        "an unknown key": SigningKey("two").token(),
        "no signature": f"{head}.{body}.",
        "another body": f"{head}.{unsigned(claims).split('.')[1]}.{signature}",
        "the algorithm none": unsigned(claims),
        "the algorithm NONE": unsigned(claims, "NONE"),
        "an HMAC with the public key": hmac_token(claims, secret),
        "expired": KEY.token(exp=now - 11),
        "not yet": KEY.token(nbf=now + 30),
        "no expiry": KEY.token(without=("exp",)),
        "an expiry that is none": KEY.token(exp="never"),
        "an expiry beyond all numbers": KEY.token(exp=10**400),
        "an expiry that is endless": KEY.token(exp=float("inf")),
        "no issuer": KEY.token(without=("iss",)),
        "another issuer": KEY.token(iss="https://other.example"),
        "no audience": KEY.token(without=("aud",)),
        "another audience": KEY.token(aud="another"),
    }


def hmac_token(claims: dict[str, Any], secret: bytes) -> str:
    """PyJWT itself refuses to make one with a public key for a secret."""
    signed = unsigned(claims, "HS256").rstrip(".")
    digest = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{jwt.utils.base64url_encode(digest).decode()}"


@pytest.mark.parametrize("kind", unsound())
async def test_a_token_that_is_not_sound_is_refused_without_being_quoted(key_file: Path, kind: str) -> None:
    token = unsound()[kind]
    with pytest.raises(Unauthenticated) as caught:
        await tokens(key_file).identify(token)
    for part in filter(None, token.split(".")):
        assert part not in str(caught.value)


async def test_an_algorithm_that_is_not_allowed_is_refused(key_file: Path) -> None:
    with pytest.raises(Unauthenticated):
        await tokens(key_file, algorithms=("RS256",)).identify(KEY.token())


@pytest.mark.parametrize(("signs", "names"), [("RS512", "RS256"), ("PS256", "RS256"), ("RS256", "PS256")])
async def test_a_key_that_names_an_algorithm_is_for_no_other(tmp_path: Path, signs: str, names: str) -> None:
    key = SigningKey(algorithm=signs, names=names)
    path = tmp_path / "keys.json"
    path.write_text(key_set(key))
    with pytest.raises(Unauthenticated):
        await tokens(path, algorithms=ALGORITHMS).identify(key.token())


async def test_a_key_of_rsa_is_for_the_algorithms_that_are_allowed(tmp_path: Path) -> None:
    key = SigningKey(algorithm="PS256")
    path = tmp_path / "keys.json"
    path.write_text(key_set(key))
    with pytest.raises(Unauthenticated):
        await tokens(path, algorithms=("RS256", "PS512")).identify(key.token())


@pytest.mark.parametrize(
    ("claims", "namespace", "queues", "roles"),
    [
        ({"ns": "team", "q": ["a.*"], "roles": "consumer watcher"}, "team", ("a.*",), 6),
        ({"ns": ["team"], "q": "a b", "roles": ["admin"]}, "team", ("a", "b"), 8),
        ({"ns": "team", "roles": ["admin"]}, "team", (), 8),
        ({"ns": "team", "q": ["*"], "roles": {"admin": True}}, "team", ("*",), 0),
        ({"ns": "team", "q": ["*", 7, None], "roles": []}, "team", ("*",), 0),
    ],
)
async def test_claims_give_the_namespace_the_queues_and_the_roles(
    key_file: Path, claims: dict[str, Any], namespace: str, queues: tuple[str, ...], roles: int
) -> None:
    checked = tokens(key_file, namespace_claim="ns", queues_claim="q")
    identity = await checked.identify(KEY.token(without=() if "roles" in claims else ("roles",), **claims))
    [grant] = identity.grants
    assert (identity.namespace, grant.queues, int(grant.roles)) == (namespace, queues, roles)


async def test_a_claim_may_lie_within_objects_or_be_named_with_dots(key_file: Path) -> None:
    checked = tokens(key_file, roles_claim="realm.roles")
    for claims in ({"realm": {"roles": ["producer"]}}, {"realm.roles": ["producer"]}):
        identity = await checked.identify(KEY.token(**claims))
        assert identity.roles == CallerRole.PRODUCER
    identity = await checked.identify(KEY.token(realm="none"))
    assert identity.roles == 0


@pytest.mark.parametrize("namespace", [None, "", "A", "a b", "a/b", "a:b", "@", "a\x1fb", 7, ["a", "b"]], ids=repr)
async def test_a_token_must_name_one_namespace_if_namespaces_are_claimed(key_file: Path, namespace: object) -> None:
    claims: dict[str, Any] = {} if namespace is None else {"ns": namespace}
    with pytest.raises(Unauthenticated, match="one namespace"):
        await tokens(key_file, namespace_claim="ns").identify(KEY.token(**claims))


async def has_changed(checked: SignedTokens) -> bool:
    before = checked.version
    await checked.refresh()
    return checked.version != before


# -- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "{}", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "[]"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(AccessFailed):
        KeyFile(path)


RSA = SigningKey(algorithm="RS256").jwk
UNUSABLE: dict[str, dict[str, Any]] = {
    "of no type": {"kid": "one"},
    "of a list of types": RSA | {"kty": ["RSA"]},
    "of a type that is a number": RSA | {"kty": 1},
    "for a list of algorithms": RSA | {"alg": ["RS256"]},
    "for the algorithm none": RSA | {"alg": "none"},
    "with a number that is none in base64": RSA | {"n": 65537},
    "with numbers that are missing": {"kty": "RSA"},
    "with numbers that cannot be": RSA | {"e": "AA"},
    "not on its curve": KEY.jwk | {"x": "AA"},
    "of a curve that nobody knows": KEY.jwk | {"crv": "P-1"},
}


@pytest.mark.parametrize("kind", UNUSABLE)
async def test_a_key_that_cannot_be_used_is_left_out(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [UNUSABLE[kind], KEY.jwk]}))
    await tokens(path).identify(KEY.token())
    path.write_text(json.dumps({"keys": [UNUSABLE[kind]]}))
    with pytest.raises(AccessFailed, match="no key to check"):
        KeyFile(path)


@pytest.mark.parametrize("error", [UnsupportedAlgorithm, TypeError])
async def test_a_key_that_this_system_or_an_older_pyjwt_cannot_use_is_left_out(
    key_file: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    true = jwt.PyJWK

    def make(entry: dict[str, Any], *algorithm: str) -> jwt.PyJWK:
        if entry["kid"] == "other":
            raise error("no such key")
        return true(entry, *algorithm)

    monkeypatch.setattr(jwt, "PyJWK", make)
    write(key_file, key_set(SigningKey("other", "EdDSA"), KEY))
    await tokens(key_file).identify(KEY.token())


async def test_a_file_that_changes_is_read_again(key_file: Path) -> None:
    checked = tokens(key_file)
    new = SigningKey("new")
    assert not await has_changed(checked)
    write(key_file, key_set(new))
    assert await has_changed(checked)
    await checked.identify(new.token())
    with pytest.raises(Unauthenticated):
        await checked.identify(KEY.token())
    write(key_file, "broken")
    assert not await has_changed(checked)
    await checked.identify(new.token())


async def test_keys_of_a_url_are_fetched_once_and_an_unknown_one_asks_again_but_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    monkeypatch.setattr("headwayd.access.jwks.time.monotonic", lambda: now)
    with key_server(key_set(KEY)) as server:
        checked = SignedTokens(SignedRules(**RULES), KeyUrl(server.url))
        assert await has_changed(checked)
        for _ in range(3):
            await checked.identify(KEY.token())
        assert server.asked == 1
        new = SigningKey("new")
        server.text = key_set(KEY, new)
        for token in (new.token(), SigningKey("made-up").token()):
            with pytest.raises(Unauthenticated):
                await checked.identify(token)
        assert server.asked == 1  # it has just been asked
        now += 31
        await checked.identify(new.token())
        assert server.asked == 2
        with pytest.raises(Unauthenticated):
            await checked.identify(SigningKey("made-up").token())
        assert server.asked == 2
        now += 301
        assert not await has_changed(checked)  # the same keys
        assert server.asked == 3


async def test_keys_that_an_unknown_one_had_fetched_have_changed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who is remembered by a key that was taken back would be served for as long as the token holds."""
    now = 1_000.0
    monkeypatch.setattr("headwayd.access.jwks.time.monotonic", lambda: now)
    with key_server(key_set(KEY)) as server:
        access = Access(file=None, signed=SignedTokens(SignedRules(**RULES), KeyUrl(server.url)))
        await access.refresh_keys()
        await access.identify_token(KEY.token())
        version, new = access.version, SigningKey("new")
        server.text = key_set(new)
        now += 31
        await access.identify_token(new.token())
        assert access.version > version
        version = access.version
        await access.refresh_keys()
        assert access.version == version
        now += 31
        with pytest.raises(Unauthenticated):
            await access.identify_token(SigningKey("made-up").token())
        assert access.version == version  # the same keys


class Fetch:
    """A fetch of the key, which is answered when it is let."""

    def __init__(self) -> None:
        self.asked, self.answer = asyncio.Event(), asyncio.Event()
        self.times_asked = 0

    async def __call__(self, _url: str, *, within_s: float) -> bytes:
        self.times_asked += 1
        self.asked.set()
        await asyncio.wait_for(self.answer.wait(), within_s)
        return key_set(KEY).encode()


@pytest.fixture
def fetch(monkeypatch: pytest.MonkeyPatch) -> Fetch:
    """What fetches the keys of any address."""
    made = Fetch()
    monkeypatch.setattr("headwayd.access.jwks.fetched", made)
    return made


def by_address() -> SignedTokens:
    return SignedTokens(SignedRules(**RULES), KeyUrl("http://127.0.0.1:1/"))


async def test_what_the_file_says_is_in_force_while_keys_are_fetched(tmp_path: Path, fetch: Fetch) -> None:
    caller = Caller(roles=("admin",))
    file = write_callers(tmp_path / "callers.toml", [caller])
    access = Access(file=file, signed=by_address())
    fetching = asyncio.create_task(access.refresh_keys())
    await asyncio.wait_for(fetch.asked.wait(), 5)
    version = access.version
    write_callers(file, [Caller(roles=("admin",))])
    access.refresh()
    assert access.version > version
    with pytest.raises(Unauthenticated):
        await access.identify_token(caller.token)
    fetch.answer.set()
    await fetching
    assert access.version > version + 1


async def test_who_comes_while_keys_are_fetched_waits_for_them(monkeypatch: pytest.MonkeyPatch, fetch: Fetch) -> None:
    monkeypatch.setattr("headwayd.access.jwks._MOST_WAITING", 11)  # with who fetches
    checked = by_address()
    fetching = asyncio.create_task(checked.refresh())
    async with asyncio.timeout(5):
        await fetch.asked.wait()
        waiting = [asyncio.create_task(checked.identify(KEY.token())) for _ in range(9)]
        waiting.append(asyncio.create_task(checked.identify(SigningKey("made-up").token())))
        await asyncio.sleep(0)  # they have all come
        with pytest.raises(Unauthenticated):
            await checked.identify(KEY.token())  # too many wait already
        fetch.answer.set()
        *sound, made_up = await asyncio.gather(*waiting, return_exceptions=True)
        await fetching
    assert [getattr(one, "name", one) for one in sound] == ["somebody"] * 9
    assert isinstance(made_up, Unauthenticated)
    assert fetch.times_asked == 1


async def test_a_fetch_goes_on_if_whoever_began_it_has_gone(fetch: Fetch) -> None:
    checked = by_address()
    async with asyncio.timeout(5):
        first = asyncio.create_task(checked.identify(KEY.token()))
        await fetch.asked.wait()
        second = asyncio.create_task(checked.identify(KEY.token()))
        await asyncio.sleep(0)  # it has come
        first.cancel()
        await asyncio.wait({first})
        fetch.answer.set()
        assert (await second).name == "somebody"
    assert fetch.times_asked == 1


async def test_keys_that_come_byte_by_byte_are_given_up_in_good_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwayd.access.jwks._FETCH_TIMEOUT_S", 0.5)
    with dripping_server() as server:
        keys = KeyUrl(server.url)
        await asyncio.wait_for(keys.refresh(), 5)
        assert server.asked == 1
        assert await asyncio.to_thread(server.has_lost.wait, 5)  # nobody goes on reading
        assert await keys.key("one", "ES256") is None  # it has just been asked
    assert server.asked == 1


@pytest.mark.parametrize("answer", [b"no HTTP secret", b"HTTP/1.1 302 -\r\nLocation: /secret", b"", b"HTTP/1.1 503 -"])
async def test_an_address_is_not_quoted_where_its_keys_cannot_be_had(answer: bytes) -> None:
    with dripping_server(answer + b"\r\nContent-Length: 0\r\n\r\n") as server:
        with pytest.raises(FetchFailed) as caught:
            await fetched(f"{server.url}?secret", within_s=5)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "ftp://somebody:secret@127.0.0.1", "http://[::secret"])
async def test_a_proxy_that_cannot_be_used_is_told_and_not_quoted(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with structlog.testing.capture_logs() as logged:
        await KeyUrl("http://keys.invalid/").refresh()
    [warning] = logged
    assert "proxy" in warning["error"]
    assert "secret" not in str(warning)


async def test_more_than_any_key_set_has_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwayd.access.fetching._MOST_BYTES", 1_000)
    with key_server("x" * 1_000) as server:
        assert len(await fetched(server.url, within_s=5)) == 1_000
        server.text = "x" * 1_001
        with pytest.raises(FetchFailed, match="more than 1000 bytes"):
            await fetched(server.url, within_s=5)


async def test_keys_that_are_known_stay_while_the_url_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("headwayd.access.jwks.time.monotonic", lambda: now)
    with key_server(key_set(KEY)) as server:
        checked = SignedTokens(SignedRules(**RULES), KeyUrl(server.url))
        await checked.refresh()
        for answer in (None, "not JSON", json.dumps({"keys": []})):
            server.text = answer
            now += 301
            assert not await has_changed(checked)
            await checked.identify(KEY.token())


async def test_a_url_is_not_asked_all_the_time_where_its_answer_shows_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_contents: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("headwayd.access.jwks._read", fail)
    with key_server(key_set(KEY)) as server:
        keys = KeyUrl(server.url)
        with pytest.raises(ZeroDivisionError):
            await keys.refresh()
        await keys.refresh()
        assert server.asked == 1


async def test_the_log_does_not_tell_what_stands_behind_the_address_of_keys() -> None:
    with key_server(None) as server, structlog.testing.capture_logs() as logged:
        await KeyUrl(f"{server.url}?key=secret").refresh()
    [warning] = logged
    assert (warning["url"], warning["error"]) == (server.url, "the answer was 503")


async def test_without_keys_yet_signed_tokens_are_refused_until_they_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    monkeypatch.setattr("headwayd.access.jwks.time.monotonic", lambda: now)
    with key_server(None) as server:
        checked = SignedTokens(SignedRules(**RULES), KeyUrl(server.url))
        await checked.refresh()
        with pytest.raises(Unauthenticated):
            await checked.identify(KEY.token())
        server.text = key_set(KEY)
        now += 31
        assert await has_changed(checked)
        await checked.identify(KEY.token())
