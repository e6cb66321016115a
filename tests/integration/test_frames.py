"""The scripts and the service read and write the same frames, whatever was read or written before."""

from __future__ import annotations

from importlib import resources
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from harness import StoreServer
from headwayd.store import frames, scripts
from unit.test_columns import frame

READ = """
local told = {}
for _, element in ipairs(ARGV) do
  local id, put_at = read_frame(element)
  told[#told + 1] = id or ''
  told[#told + 1] = string.format('%.0f', put_at or 0)
  told[#told + 1] = body_of(element)
end
return told
"""
WRITE = """
local made = {}
for i = 1, #ARGV, 4 do
  made[#made + 1] = make_element(ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]))
end
return made
"""
PUT_TIMES = st.sampled_from([0, 1_700_000_000_000, 1_700_000_000_001, 2**53 - 1])
# Few, so that many are alike in size.
IDS = st.sampled_from([b"", b"a", b"b", b"ab", b"\xff\x00"])
HEADERS = st.sampled_from([b"", b"\x1a\x00", b"\x1a\x01", b"headers"])
PAYLOADS = st.sampled_from([b"", b"x", b"y", b"xy", frames.MAGIC, frames.MAGIC + b"x" * 30, frame(b"a", b"", b"x", 1)])
# Each differs from the one before in one thing: when it was put, or how large its headers, its id, or all of it are.
SIMILAR = [
    (b"a", b"", b"xyz", 1),
    (b"a", b"", b"xyz", 2),
    (b"a", b"\x1a\x00", b"x", 2),
    (b"ab", b"\x1a\x00", b"", 2),
    (b"ab", b"\x1a\x00", b"x", 2),
]
MESSAGES = st.tuples(IDS, HEADERS, PAYLOADS, PUT_TIMES)
FRAMES = MESSAGES.map(lambda message: frame(*message))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """What was a frame once, or still is one though it is not as it was put."""
    whole = draw(FRAMES)
    kind = draw(st.sampled_from(["cut", "longer", "byte", "mixed"]))
    if kind == "cut":
        return whole[: draw(st.integers(0, len(whole)))]
    if kind == "longer":
        return whole + draw(st.binary(min_size=1, max_size=2))
    if kind == "mixed":
        return draw(FRAMES)[:24] + whole[24:]
    at = draw(st.integers(0, len(whole) - 1))
    return whole[:at] + draw(st.binary(min_size=1, max_size=1)) + whole[at + 1 :]


def lying(sizes: tuple[int, int, int]) -> bytes:
    """The check is right, the sizes of id, headers and all need not be."""
    id_size, headers_size, total = sizes
    head = frames.MAGIC + bytes(8) + id_size.to_bytes(2) + headers_size.to_bytes(4) + total.to_bytes(4)
    return head + (sum(at * byte for at, byte in enumerate(head, start=1)) % 65521).to_bytes(2) + b"xyz"


LYING = st.tuples(
    st.sampled_from([0, 1, 3, 4, 65_535]), st.sampled_from([0, 2, 3, 2**32 - 1]), st.sampled_from([23, 24, 27, 28])
).map(lying)
ELEMENTS = st.one_of(FRAMES, damaged(), LYING, PAYLOADS)


def ask(store_server: StoreServer, script: str, args: list[bytes | int]) -> Any:
    """What the functions for frames, as they are included in the scripts, answer to one call."""
    include = resources.files(scripts.__package__).joinpath("lua/include/frame.lua").read_text()
    with store_server.client() as raw:
        return raw.eval("\n".join(scripts.with_constants((include + script).split("\n"))), 0, *args)


@given(drawn=st.lists(ELEMENTS, min_size=1, max_size=12), order=st.randoms())
def test_the_scripts_read_what_the_service_reads(store_server: StoreServer, drawn: list[bytes], order: Any) -> None:
    elements = drawn * 2
    order.shuffle(elements)
    told = ask(store_server, READ, list(elements))
    read = frames.read_all(elements)
    none = [b""] * len(elements)
    bodies = [
        len(headers).to_bytes(4) + headers + payload
        for headers, payload in zip(read.headers or none, read.payloads, strict=True)
    ]
    assert told[0::3] == list(read.ids or none)
    assert list(map(int, told[1::3])) == list(read.put_at_ms)
    assert told[2::3] == bodies


@example(messages=SIMILAR)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=12))
def test_the_scripts_write_what_the_service_reads(
    store_server: StoreServer, messages: list[tuple[bytes, bytes, bytes, int]]
) -> None:
    made = ask(store_server, WRITE, [value for message in messages for value in message])
    for element, (given_id, headers, payload, put_at_ms) in zip(made, messages, strict=True):
        is_bare = not given_id and not headers and not payload.startswith(frames.MAGIC)
        assert element == (payload if is_bare else frame(given_id, headers, payload, put_at_ms))
