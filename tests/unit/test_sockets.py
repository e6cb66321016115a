"""An address that is held for several processes: theirs, and nobody else's."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from harness.ipv6 import has_ipv6, without_ipv6
from headwayd.sockets import CannotListen, held

pytestmark = pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="no SO_REUSEPORT on this system")
LOOPBACK = "127.0.0.1"


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def listener(port: int, *, shares: bool, host: str = LOOPBACK) -> socket.socket:
    """One that listens, as gRPC's do."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shares))
    try:
        one.bind((host, port))
        one.listen()
    except OSError:
        one.close()
        raise
    return one


@pytest.fixture
def address() -> Iterator[str]:
    with held([f"{LOOPBACK}:0"]) as (one,):
        yield one


def test_a_port_of_0_becomes_a_real_one_that_several_can_listen_on(address: str) -> None:
    assert port_of(address) > 0
    with closing(listener(port_of(address), shares=True)), closing(listener(port_of(address), shares=True)):
        pass


def test_what_is_held_gets_no_connection(address: str) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, port_of(address)), timeout=5)
    with closing(listener(port_of(address), shares=True)) as one:
        for _ in range(20):
            with socket.create_connection((LOOPBACK, port_of(address)), timeout=5):
                one.settimeout(5)
                one.accept()[0].close()


def test_nobody_else_can_hold_it_before_and_after_anyone_listens(address: str) -> None:
    for is_shared in (False, True):
        sockets = [listener(port_of(address), shares=True)] if is_shared else []
        with pytest.raises(CannotListen, match=f"cannot listen on {address}: taken"), held([address]):
            pass
        with pytest.raises(OSError, match="in use"):
            listener(port_of(address), shares=False)
        for one in sockets:
            one.close()


@pytest.mark.parametrize("shares", [True, False])
def test_an_address_on_which_somebody_listens_cannot_be_held(shares: bool) -> None:
    with closing(listener(0, shares=shares)) as one:
        address = f"{LOOPBACK}:{one.getsockname()[1]}"
        with pytest.raises(CannotListen, match="taken"), held([address]):
            pass


@pytest.mark.parametrize("host", ["0.0.0.0", LOOPBACK])
def test_the_address_of_all_cannot_be_held_where_somebody_listens_by_ipv4(host: str) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with closing(listener(0, shares=True, host=host)) as one:
        address = f"[::]:{one.getsockname()[1]}"
        with pytest.raises(CannotListen, match="taken"), held([address]):
            pass


@pytest.mark.parametrize("host", ["0.0.0.0", LOOPBACK])
@pytest.mark.parametrize("is_first", [True, False])
def test_an_address_may_be_named_beside_that_of_all(host: str, *, is_first: bool) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with closing(listener(0, shares=False)) as free:
        port = free.getsockname()[1]
    both = [f"{host}:{port}", f"[::]:{port}"]
    with held(both if is_first else both[::-1]):
        for address in both:
            with pytest.raises(CannotListen, match="taken"), held([address]):
                pass


def test_connections_that_have_just_ended_are_not_in_the_way() -> None:
    with closing(listener(0, shares=False)) as one:
        port = one.getsockname()[1]
        with socket.create_connection((LOOPBACK, port), timeout=5) as client:
            accepted, _ = one.accept()
            accepted.close()  # the side that closes first keeps the address for a minute
            assert client.recv(1) == b""
    with held([f"{LOOPBACK}:{port}"]) as addresses:
        assert addresses == (f"{LOOPBACK}:{port}",)
        with pytest.raises(CannotListen), held(addresses):  # nor does this open it to others
            pass


def test_after_the_block_it_is_free_again() -> None:
    with held([f"{LOOPBACK}:0"]) as (address,):
        pass
    listener(port_of(address), shares=False).close()


def test_all_addresses_are_held_and_a_failure_holds_none() -> None:
    with held([f"{LOOPBACK}:0", f"{LOOPBACK}:0"]) as (first, second):
        assert first != second
    with pytest.raises(CannotListen, match=f"cannot listen on {first}"), held([second, first, first]):
        pass
    with held([first, second]) as again:
        assert again == (first, second)


def test_every_address_of_a_name_gets_the_same_port() -> None:
    with held(["localhost:0"]) as (address,):
        assert address.startswith("localhost:")
        families = {found[0] for found in socket.getaddrinfo("localhost", port_of(address), type=socket.SOCK_STREAM)}
        assert socket.AF_INET in families
        with pytest.raises(CannotListen), held([f"{LOOPBACK}:{port_of(address)}"]):
            pass


@pytest.mark.parametrize("refusal", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_the_address_of_all_is_that_of_ipv4_where_there_is_no_other(
    refusal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", without_ipv6(refusal))
    with held(["[::]:0"]) as (address,):
        assert address == f"0.0.0.0:{port_of(address)}"
        assert port_of(address) > 0
        with closing(listener(port_of(address), shares=True)), closing(listener(port_of(address), shares=True)):
            pass
        with pytest.raises(CannotListen, match="taken"), held([f"[::]:{port_of(address)}"]):
            pass
    with pytest.raises(CannotListen), held(["[::1]:0"]):  # is another's
        pass


@pytest.mark.parametrize("address", ["192.0.2.1:0", "no-such-host.invalid:0"])
def test_what_is_no_address_of_this_machine_is_refused(address: str) -> None:
    with pytest.raises(CannotListen, match=f"cannot listen on {address}"), held([address]):
        pass


def test_a_system_that_cannot_share_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    with pytest.raises(CannotListen, match="set workers to 1"), held([f"{LOOPBACK}:0"]):
        pass
