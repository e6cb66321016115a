"""Where scenarios play: services, a store, proxies in front of them, and what can go wrong with each."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from conformance.securing import Credentials
from faults.wires import ReplyProxy
from harness import FaultProxy, ServiceProcess, StoreServer
from harness.conditions import eventually
from harness.stores import free_port
from wire.calls import Keys

KINDS = ("shared", "proxied", "own", "fragile", "secured")
_PREFIX = "__conformance__"
_ALL = 1_000_000
_LOST_S = 20.0


@dataclass(slots=True)
class Scene:
    """What one scenario has: the addresses of its services by their names, and the faults that it may order.

    options: what its clients connect with, if a step does not say otherwise; files: what else there is, by name.
    """

    addresses: dict[str, str]
    keys: Callable[[str], Keys]
    proxies: dict[str, FaultProxy] = field(default_factory=dict)
    services: dict[str, ServiceProcess] = field(default_factory=dict)
    store: StoreServer | None = None
    store_proxy: ReplyProxy | None = None
    direct: str = ""  # of another service on the same store, or of the same past its proxy
    options: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    credentials: Credentials | None = None
    spoilt: list[Keys] = field(default_factory=list)  # the queues that no service can work on any more

    def tidy(self) -> None:
        """Removes what is spoilt: else a service that others share would try, and log it, as long as it lives."""
        for keys in self.spoilt:
            keys.client.delete(*keys.all())

    async def fault(self, kind: str, about: str, queue: str) -> None:
        """Does what a scenario's fault says. Raises KeyError for what this scene does not have."""
        await getattr(self, f"_{kind}")(about, queue)

    async def _cut(self, name: str, _: str) -> None:
        """Resets every connection; new ones are let through."""
        self.proxies[name].cut(refuse=False)

    async def _refuse(self, name: str, _: str) -> None:
        """Resets every connection, and new ones too."""
        self.proxies[name].cut()

    async def _mute(self, name: str, _: str) -> None:
        """Lets nothing through, and resets nothing."""
        self.proxies[name].silent = True

    async def _swallow(self, name: str, _: str) -> None:
        """Requests are lost on their way."""
        self.proxies[name].swallowed = b""

    async def _swallowed(self, name: str, queue: str) -> None:
        """Waits until a request about the queue is lost."""
        await eventually(lambda: queue.encode() in (self.proxies[name].swallowed or b""), within=_LOST_S)

    async def _restore(self, name: str, _: str) -> None:
        """Everything passes again."""
        self.proxies[name].restore()

    async def _drain(self, name: str, _: str) -> None:
        """SIGTERM; does not wait for the end."""
        self.services[name].signal(signal.SIGTERM)

    async def _stop(self, name: str, _: str) -> None:
        """SIGTERM, and waits for the end."""
        await asyncio.to_thread(self.services[name].stop)

    async def _kill(self, name: str, _: str) -> None:
        await asyncio.to_thread(self.services[name].kill)

    async def _start(self, name: str, _: str) -> None:
        """On the same address as before."""
        await asyncio.to_thread(self.services[name].start)

    async def _token(self, caller: str, _: str) -> None:
        """The clients' file holds this caller's token from now on."""
        assert self.credentials is not None
        self.credentials.give(Path(self.options["token_file"]), caller)

    async def _brief_token(self, name: str, _: str) -> None:
        """The clients' file holds an admin's token from now on that expires in some seconds."""
        assert self.credentials is not None
        await self.credentials.give_brief(Path(self.options["token_file"]), self.addresses[name])

    async def _take_role(self, role: str, queue: str) -> None:
        """As a foreign client that holds a role and does not give it back."""
        keys = self.keys(queue)
        keys.client.rpop(keys[f"{role}_free"])

    async def _give_role(self, role: str, queue: str) -> None:
        keys = self.keys(queue)
        keys.client.lpush(keys[f"{role}_free"], 0)

    async def _spoil(self, suffix: str, queue: str) -> None:
        """Puts somebody else's value where the service keeps one of its own; the name "line" is the line's."""
        keys = self.keys(queue)
        name = keys["" if suffix == "line" else suffix]
        keys.client.delete(name)
        keys.client.hset(name, "not", "a list")
        keys.client.delete(keys["producer_free"])
        self.spoilt.append(keys)

    async def _store(self, trouble: str, _: str) -> None:
        """The store refuses connections, loses its answers, is full, lacks replicas; or works."""
        assert self.store is not None
        assert self.store_proxy is not None
        with self.store.client() as client:
            client.config_set("maxmemory", 1 if trouble == "is_full" else 0)
            client.config_set("min-replicas-to-write", 1 if trouble == "lacks_replicas" else 0)
        self.store_proxy.restore()
        # Those of scripts: without the others there would soon be no connection over which to lose any.
        self.store_proxy.lost_answers = _ALL if trouble == "loses_answers" else 0
        if trouble == "refuses":
            self.store_proxy.cut()
        elif trouble not in ("works", "loses_answers", "is_full", "lacks_replicas"):
            raise KeyError(trouble)


class Stage:
    """Everything that the scenarios of one test process share; start it with `async with`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()
        self._count = 0
        self._fragile: Scene | None = None
        self._secured: tuple[ServiceProcess, Credentials] | None = None

    async def __aenter__(self) -> Stage:
        self._store = self._make_store()
        self._redis = self._stack.enter_context(self._store.client())
        self.service = await self._make_service(self._store.url)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def scene(self, kind: str, options: dict[str, Any], *, over_http: bool = False) -> AsyncIterator[Scene]:
        """One scenario's: "shared" the service of all; "proxied" the same behind a proxy; "own" services of its own,
        named by `services`, with `settings`; "fragile" one whose store can be troubled; "secured" one that wants TLS, a
        certificate and a token. Its addresses are those of gRPC, or the URLs of the HTTP ports."""
        async with self._scene(kind, options, over_http=over_http) as scene:
            try:
                yield scene
            finally:
                scene.tidy()

    @asynccontextmanager
    async def _scene(self, kind: str, options: dict[str, Any], *, over_http: bool) -> AsyncIterator[Scene]:
        def at(service: ServiceProcess) -> str:
            return service.http if over_http else service.address

        if kind == "shared":
            yield Scene({"service": at(self.service)}, self._keys)
        elif kind == "proxied":
            address, _, port = at(self.service).rpartition(":")
            async with FaultProxy(int(port)) as proxy:
                addresses = {"service": f"{address}:{proxy.port}"}
                yield Scene(addresses, self._keys, {"service": proxy}, direct=at(self.service))
        elif kind == "fragile":
            scene = await self._fragile_scene()
            try:
                yield replace(scene, addresses={name: at(each) for name, each in scene.services.items()})
            finally:
                await scene.fault("store", "works", "")
        elif kind == "secured":
            service, credentials = await self._secured_service()
            yield Scene(
                {"service": service.address},
                self._keys,
                direct=service.address,
                options=credentials.options(),
                files=credentials.files,
                credentials=credentials,
            )
        else:
            async with self._own_services(options, over_http=over_http) as services:
                addresses = {name: at(each) for name, each in services.items()}
                yield Scene(addresses, self._keys, services=services, direct=at(self.service))

    @asynccontextmanager
    async def _own_services(
        self, options: dict[str, Any], *, over_http: bool
    ) -> AsyncIterator[dict[str, ServiceProcess]]:
        names = options.get("services", ["service"])
        settings = options.get("settings", {})
        made = {name: self._service(self._store.url, settings, over_http=over_http) for name in names}
        try:
            await asyncio.gather(*(asyncio.to_thread(each.start) for each in made.values()))
            yield made
        finally:
            await asyncio.gather(*(asyncio.to_thread(each.stop) for each in made.values()))

    async def _fragile_scene(self) -> Scene:
        if self._fragile is None:
            store = self._make_store()
            proxy = await self._stack.enter_async_context(ReplyProxy(store.port))
            service = await self._make_service(proxy.url)
            client = self._stack.enter_context(store.client())
            self._fragile = Scene(
                {},
                lambda name: Keys(client, _PREFIX, name),
                services={"service": service},
                store=store,
                store_proxy=proxy,
            )
        return self._fragile

    async def _secured_service(self) -> tuple[ServiceProcess, Credentials]:
        if self._secured is None:
            credentials = Credentials(self._new_folder("credentials"))
            self._secured = (await self._make_service(self._store.url, credentials.settings), credentials)
        return self._secured

    def _keys(self, queue: str) -> Keys:
        return Keys(self._redis, _PREFIX, queue)

    def _make_store(self) -> StoreServer:
        store = StoreServer("valkey", self._new_folder("store"))
        store.start()
        self._stack.callback(store.stop)
        return store

    async def _make_service(self, url: str, settings: dict[str, str] | None = None) -> ServiceProcess:
        service = self._service(url, settings or {}, over_http=True)
        self._stack.callback(service.stop)
        await asyncio.to_thread(service.start)
        return service

    def _service(self, url: str, settings: dict[str, str], *, over_http: bool) -> ServiceProcess:
        # Ports of its own, because it may be started again and is looked for where it was.
        listen = {"HEADWAY_LISTEN": f"127.0.0.1:{free_port()}"}
        if over_http:
            listen["HEADWAY_HTTP_LISTEN"] = f"127.0.0.1:{free_port()}"
        env = {"HEADWAY_REDIS_URL": url, "PRESSURE_PREFIX": _PREFIX} | listen | settings
        return ServiceProcess(self._new_folder("service"), env=env)

    def _new_folder(self, kind: str) -> Path:
        self._count += 1
        folder = self._folder / f"{kind}{self._count}"
        folder.mkdir()
        return folder
