"""Spells every key and channel of the store, once. The Lua scripts get their table from here.

`P` is the prefix (`__pressure__` unless set otherwise), `q` a queue's name; a namespace N is a prefix of its own,
`P@N`. The twelve keys of pressure 0.15 come first; Headway's own lie under `P:q:x:`. There are no keys that belong to
no queue: which queues exist is seen from the `:bound` keys, and which processes live from who listens to their channel.
"""

from __future__ import annotations

import re

from headwayd.domain.namespaces import DEFAULT, SEPARATOR, qualifier, split

PRESSURE = {
    "q": "",  # list: the line; LPUSH joins at the left, the right end is the head
    "bound": ":bound",  # string: most messages that may wait, 0 = no bound. Exists exactly while the queue does
    "producer": ":producer",  # string: name of the last producer
    "consumer": ":consumer",  # string: name of the last consumer
    "producer_free": ":producer_free",  # list: one token while no foreign client holds the producer role
    "consumer_free": ":consumer_free",  # list: one token while no foreign client holds the consumer role
    "not_full": ":not_full",  # list: one token while bound = 0 or the line is shorter than the bound
    "closed": ":closed",  # list: two tokens once the queue is closed
    "produced_messages": ":stats:produced_messages",  # string: counter
    "produced_bytes": ":stats:produced_bytes",  # string: counter, bytes as stored
    "consumed_messages": ":stats:consumed_messages",  # string: counter
    "consumed_bytes": ":stats:consumed_bytes",  # string: counter, bytes as stored
}
# Spellings of the counters that older clients left behind; removed by Delete, never read.
STALE_SUFFIXES = tuple(
    f":{style}{verb}_{unit}"
    for style in ("", "stats_")
    for verb in ("produced", "consumed")
    for unit in ("messages", "bytes")
)
OWN = {
    "meta": ":x:meta",  # hash: generation, bookkeeping, counters and the policy; see lua/include/meta.lua
    "times": ":x:times",  # list of "ticket:ms": from this ticket on, messages were put at about this time
    "gate": ":x:gate",  # list: the line, within a transaction only; see lua/include/gate.lua
    "returned": ":x:returned",  # zset of tickets that came back, in their order at the head; see lua/include/blocks.lua
    "side": ":x:side",  # hash ticket → record: what is known of waiting messages that were leased or delayed before
    "leases": ":x:leases",  # zset ticket → deadline (ms)
    "gaps": ":x:gaps",  # zset ticket → ticket: those behind the head that left the line from its middle
    "holes": ":x:holes",  # zset of tickets whose element still stands in line, in its order; see lua/include/places.lua
    "expiry": ":x:expiry",  # zset ticket, or 'd' and sequence number → when what waits or is delayed expires (ms)
    "lease": ":x:lease",  # hash ticket → record
    "body": ":x:body",  # hash ticket → element of the line, kept while leased
    "bundle": ":x:bundle",  # hash: what was leased in one step and is kept as one; see lua/include/bundles.lua
    "bundle_at": ":x:bundle_at",  # zset step of a bundle → deadline (ms)
    "bundle_from": ":x:bundle_from",  # zset step of a bundle → its first ticket
    "delayed": ":x:delayed",  # zset sequence number → due (ms)
    "later": ":x:later",  # hash sequence number → record and element
    "dead": ":x:dead",  # zset reference (ticket, or 'd' and sequence number) → number, in the order they died
    "corpse": ":x:corpse",  # hash reference → when and why it died, record and element
    "ids": ":x:ids",  # hash id → where its message is; see lua/include/names.lua
    "forget": ":x:forget",  # zset id of a finished message → when it is forgotten (ms)
    "acked": ":x:acked",  # hash: how messages and leases ended; see lua/include/endings.lua
    "acked_at": ":x:acked_at",  # zset field of `acked` → last written (ms)
    "progress": ":x:progress",  # hash ticket → how far the work on a leased message has come, and a note
    "log": ":x:log",  # list: what happened to messages while somebody watches; see lua/include/queue.lua
    "attempts": ":x:attempts",  # hash attempt id → what its Get leased; see lua/include/attempts.lua
    "attempt_at": ":x:attempt_at",  # zset attempt id → when it may be forgotten (ms)
    "producers": ":x:producers",  # zset waiter → number in the producer line
    "blocked": ":x:blocked",  # hash waiter in the producer line → its producer's name, if its caller gave one
    "consumers": ":x:consumers",  # zset waiter, or place kept between calls → number in the consumer line
    "owners": ":x:owners",  # hash step of a holder → how many of its leases are out, whose; see lua/include/kept.lua
    "held": ":x:held",  # hash such a holder → how many leases it has out
    "turns": ":x:turns",  # hash such a holder → how many turns it has had in a row
    "places": ":x:places",  # hash place kept between calls → when it may come, until when it stands, strikes
    "place_at": ":x:place_at",  # zset place kept between calls → when it lapses (ms)
    "deleting": ":x:deleting",  # string: 'ours', or since when (ms) a foreign client's deletion is waited for
}

WAKE_CHANNEL = ":x:wake:"  # + process name: "your producer is first in line", the message is the queue's base key
# "<ms> <base key>": when time alone next brings work; "kick <base key>": all who wait there, look again.
DUE_CHANNEL = ":x:due"


# A key that never is. In a cluster every script names it, so that no script begins while the slot is being moved: a
# node that gives a slot away, or takes it, runs nothing that names a key which it does not have. Without it a script
# could be refused a key half way, and what it wrote before would stay.
NEVER_THERE = ":x:never"


def base_key(prefix: str, queue: str, *, is_cluster: bool = False) -> str:
    """The queue's own key: its line. A qualified name (`domain.namespaces`) has its namespace in the prefix. In a
    cluster the name stands in braces, so that all keys of a queue share a slot."""
    if SEPARATOR in queue:
        namespace, queue = split(queue)
        prefix = f"{prefix}@{namespace}"
    return f"{prefix}:{{{queue}}}" if is_cluster else f"{prefix}:{queue}"


def keys_of_call(base: str, is_cluster: bool) -> tuple[str | int, ...]:
    """How many keys a script's call names, and which."""
    return (2, base, base + NEVER_THERE) if is_cluster else (1, base)


def queue_of_base(prefix: str, base: bytes, *, is_cluster: bool = False) -> str | None:
    """The queue whose own key it is, qualified if it is in a namespace; None if it is none: what a foreign client calls
    so that it reads like a qualified name, or in a cluster with braces of its own, is nobody's here."""
    try:
        rest = base.decode()[len(prefix) :]
    except UnicodeDecodeError:
        return None
    if SEPARATOR in rest:
        return None
    namespace, _, name = rest[1:].partition(":") if rest.startswith("@") else ("", "", rest[1:])
    if is_cluster:
        if name[:1] != "{" or name[-1:] != "}":
            return None
        name = name[1:-1]
        if "{" in name or "}" in name:
            return None
    return qualifier(namespace) + name if namespace else name


def literal_pattern(text: str) -> str:
    """A pattern that matches just this text."""
    return re.sub(r"([\\*?\[\]^])", r"\\\1", text)


def bound_pattern(prefix: str, namespace: str | None) -> str:
    """A SCAN pattern for the bound keys of all queues of a namespace; None = of all of them."""
    if namespace is None:
        return f"{literal_pattern(prefix)}[:@]*{PRESSURE['bound']}"
    own = prefix if namespace == DEFAULT else f"{prefix}@{namespace}"
    return f"{literal_pattern(own)}:*{PRESSURE['bound']}"


def meta_pattern(prefix: str) -> str:
    """A SCAN pattern for the meta keys of all queues under `prefix`, in whatever namespace, that Headway has worked
    on."""
    return f"{literal_pattern(prefix)}[:@]*{OWN['meta']}"


def queue_of_key(prefix: str, key: bytes, suffix: str, *, is_cluster: bool = False) -> str | None:
    """The queue whose key with this suffix it is; None if the name is not UTF-8, or, in a cluster, not in braces."""
    return queue_of_base(prefix, key[: -len(suffix)], is_cluster=is_cluster)


def watched_keys(base: str, *, until_drained: bool) -> tuple[str, ...]:
    """The keys whose change may end somebody's wait on this queue. `until_drained`: also what keeps a closed queue from
    being drained."""
    names = ["q", "bound", "closed", "producer_free", "consumer_free"]
    if until_drained:
        names += ["leases", "bundle_at", "delayed"]
    table = PRESSURE | OWN
    return tuple(base + table[name] for name in names)


def empty_line_keys(base: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """None of the first is there, and all of the second, just when the queue is open, nothing waits in its line, and
    no foreign client holds a role."""
    absent, present = ("q", "closed"), ("bound", "producer_free", "consumer_free")
    return tuple(base + PRESSURE[name] for name in absent), tuple(base + PRESSURE[name] for name in present)


def looked_at_keys(base: str) -> tuple[str, ...]:
    """The keys one of which changes whenever something happens that those who watch may see, but in the lines of those
    who wait."""
    table = PRESSURE | OWN
    names = ("q", "bound", "closed", "meta", "producer_free", "consumer_free")
    return tuple(base + table[name] for name in names)


def stood_at_keys(base: str) -> tuple[str, ...]:
    """The keys one of which changes whenever somebody joins or leaves the consumer line, or a turn is over."""
    return base + OWN["consumers"], base + OWN["held"]


def blocked_at_keys(base: str) -> tuple[str, ...]:
    """The keys one of which changes whenever somebody joins or leaves the producer line, or there will never be one."""
    return base + OWN["producers"], base + PRESSURE["bound"], base + PRESSURE["closed"]


def lua_table() -> str:
    """The same spelling for Lua, for the queue at KEYS[1]. Scripts write `K.meta`, which `lua_key` spells out; for a
    name in a variable there is `key_of`."""
    rows = ", ".join(f"{name} = '{suffix}'" for name, suffix in (PRESSURE | OWN).items())
    stale = ", ".join(f"'{suffix}'" for suffix in STALE_SUFFIXES)
    own = ", ".join(f"'{name}'" for name in OWN)
    pressure = ", ".join(f"'{name}'" for name in PRESSURE)
    return (
        f"local WAKE_CHANNEL, DUE_CHANNEL = '{WAKE_CHANNEL}', '{DUE_CHANNEL}'\n"
        f"local function suffixes() return {{ {rows} }} end\n"
        f"local function stale_suffixes() return {{ {stale} }} end\n"
        f"local function own_names() return {{ {own} }} end\n"
        f"local function pressure_names() return {{ {pressure} }} end\n"
        "local BASE = KEYS[1]\n"
        "local function key_of(name) return BASE .. suffixes()[name] end\n"
        "local K = {}\n"
        "local function keep_keys()\n"
        "  setmetatable(K, { __index = function(known, suffix)\n"
        "    local key = BASE .. suffix\n"
        "    known[suffix] = key\n"
        "    return key\n"
        "  end })\n"
        "end\n"
    )


def lua_key(name: str) -> str:
    """The key with this short name, in Lua: put together where it is used, because a small step uses most of its keys
    once, and to keep them costs three times as much. Steps that use the same keys again and again call `keep_keys`."""
    suffix = (PRESSURE | OWN)[name]
    return f"(K['{suffix}'] or BASE..'{suffix}')" if suffix else "BASE"
