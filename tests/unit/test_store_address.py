"""What a store's URL says, read; and what a server's settings promise."""

from __future__ import annotations

import pytest

from headwayd.config.values import check_store_url, masked_url
from headwayd.store.address import Kind, parse_address
from headwayd.store.durability import Demand, found_in, refusal_of


def test_sentinels_are_read_with_their_own_user_and_the_servers() -> None:
    url = "redis+sentinel://u:p@a,[::1]:7/queues/3?sentinel_username=s&sentinel_password=t"
    check_store_url(url)
    address = parse_address(url)
    assert address.kind is Kind.SENTINEL
    assert address.hosts == (("a", 26_379), ("::1", 7))
    assert (address.service, address.database, address.is_tls) == ("queues", 3, False)
    assert address.sentinel_options == {"username": "s", "password": "t"}
    assert (address.options["username"], address.options["password"]) == ("u", "p")
    assert masked_url(url) == "redis+sentinel://u:***@a,[::1]:7/queues/3?sentinel_username=s&sentinel_password=***"


def test_a_cluster_is_read() -> None:
    address = parse_address("rediss+cluster://:p@a:1,b/0?ssl_ca_certs=root.pem")
    assert address.kind is Kind.CLUSTER
    assert address.hosts == (("a", 1), ("b", 6_379))
    assert (address.service, address.database, address.is_tls) == ("", 0, True)
    assert "sentinel" not in str(address.options)


@pytest.mark.parametrize(
    ("aof", "config", "found"),
    [
        ("1", {"appendfsync": "always"}, "always"),
        ("1", {"appendfsync": "everysec"}, "everysec"),
        ("1", {"appendfsync": "no"}, "memory"),
        ("1", None, "everysec"),
        ("0", {"appendfsync": "always"}, "memory"),
    ],
)
def test_what_is_found(aof: str, config: dict[str, str] | None, found: str) -> None:
    assert found_in({"aof_enabled": aof}, config)[0] == found


@pytest.mark.parametrize(
    ("least", "wanted", "is_refused"), [("0", 1, True), ("1", 1, False), ("1", 2, True), ("2", 2, False)]
)
def test_replicated_needs_as_many_replicas_to_write(least: str, wanted: int, is_refused: bool) -> None:
    demand = Demand("replicated", wanted)
    assert demand.waits_for == wanted
    refusal = refusal_of(demand, "everysec", {}, {"min-replicas-to-write": least})
    assert (refusal is not None) is is_refused


@pytest.mark.parametrize(("lag", "is_refused"), [("0", True), ("1", False)])
def test_replicated_needs_replicas_that_may_not_lag_for_ever(lag: str, is_refused: bool) -> None:
    config = {"min-replicas-to-write": "1", "min-replicas-max-lag": lag}
    assert (refusal_of(Demand("replicated", 1), "everysec", {}, config) is not None) is is_refused


def test_without_config_replicated_is_known_by_the_replicas_that_are_counted() -> None:
    demand = Demand("replicated", 1)
    assert refusal_of(demand, "everysec", {"min_slaves_good_slaves": "0"}, None) is None
    assert refusal_of(demand, "everysec", {}, None) is not None
