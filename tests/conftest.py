"""Fixtures of every test: store servers, services on them, stubs, names. What they hand out stands in `harness`."""

import itertools
import re
import shutil
import signal
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path

import grpc
import pytest
import redis
from hypothesis import HealthCheck, settings

from conformance import table
from conformance.languages import LANGUAGES, language_of
from harness import ServiceProcess, StoreServer, access, figures, order, processes, second_tries
from harness.figures import figure
from harness.stores import KINDS, program
from harness.template import Template
from headway.v1 import admin_service_pb2_grpc, queue_service_pb2, queue_service_pb2_grpc

__all__ = ["figure"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stores", default=",".join(KINDS), help=f"the stores to test on, of {', '.join(KINDS)}")
    all_languages = ",".join(LANGUAGES)
    parser.addoption("--languages", default=all_languages, help=f"the clients of tests/conformance, of {all_languages}")
    parser.addoption("--conformance-table", action="store_true", help="print it also if nothing failed")


def pytest_configure() -> None:
    # How long an example takes to make or to run says nothing on a busy machine; the timeout catches what hangs.
    settings.register_profile("headway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("headway")
    # A shell without job control lets what it starts in the background ignore interrupts, and every program that the
    # tests start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)  # behind pytest's own, which brings tests of one store together
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = set(config.getoption("--languages").split(","))
    if unknown := wanted - LANGUAGES.keys():
        raise pytest.UsageError(f"--languages: no such client: {', '.join(sorted(unknown))}")
    unwanted = [item for item in items if _languages_of(item) - wanted]
    config.hook.pytest_deselected(items=unwanted)
    items[:] = [item for item in items if item not in set(unwanted)]
    if processes := getattr(config, "workerinput", {}).get("workercount"):
        items[:] = order.dealt(items, processes)


def _languages_of(item: pytest.Item) -> set[str]:
    """The languages that a test is about, if it is one of a suite over languages."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    names = ("language", "producer", "worker_language")
    return {language_of(str(parameters[name])) for name in names if name in parameters}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures.pytest_terminal_summary(terminalreporter)
    second_tries.pytest_terminal_summary(terminalreporter)
    table.summarize(terminalreporter, whole=config.getoption("--conformance-table"))


_TESTS = Path(__file__).parent
# What these folders test lies before the store: one kind of it is enough.
_OF_THE_EDGE = frozenset({"browser", "client", "docs", "tracing", "web"})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store_kind" in metafunc.fixturenames:
        kinds = metafunc.config.getoption("--stores").split(",")
        unknown = set(kinds) - set(KINDS)
        if unknown:
            raise pytest.UsageError(f"--stores: no such store: {', '.join(sorted(unknown))}")
        folder = Path(metafunc.definition.path).relative_to(_TESTS).parts[0]
        if folder in _OF_THE_EDGE or metafunc.definition.get_closest_marker("any_store"):
            kinds = kinds[:1]
        metafunc.parametrize("store_kind", kinds, indirect=True, scope="session")


_TEMPLATE = Template()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    ServiceProcess.template = None if item.get_closest_marker("true_start") else _TEMPLATE
    return (yield)


def pytest_unconfigure() -> None:
    _TEMPLATE.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for service in ServiceProcess.live:
            report.sections.append((f"service {service.address}", processes.tail(service.log)))
    return report


@pytest.fixture(scope="session")
def worker(request: pytest.FixtureRequest) -> str:
    """This test process among its like: "gw0" …, or "main"."""
    return str(getattr(request.config, "workerinput", {}).get("workerid", "main"))


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path is short enough for unix sockets, which pytest's own are not always."""
    path = Path(tempfile.mkdtemp(prefix="hw-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def session_dir() -> Iterator[Path]:
    """The same, for things that live as long as the session."""
    path = Path(tempfile.mkdtemp(prefix="hw-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def new_folder(session_dir: Path) -> Callable[[str], Path]:
    """Makes a folder there, and another one for what is made again: `new_folder("service")`."""
    return lambda name: Path(tempfile.mkdtemp(prefix=f"{name}-", dir=session_dir))


@pytest.fixture(scope="session")
def store_kind(request: pytest.FixtureRequest) -> str:
    """ "valkey" or "redis"; a test that asks for it, directly or through others, runs once on each."""
    program(request.param)  # skips, or fails under CI
    return str(request.param)


@pytest.fixture(scope="session")
def store_server(store_kind: str, new_folder: Callable[[str], Path]) -> Iterator[StoreServer]:
    """A server shared by all tests of this worker: do not stop it, do not FLUSHALL."""
    server = StoreServer(store_kind, new_folder(store_kind))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def make_store_server(store_kind: str, short_dir: Path) -> Iterator[Callable[..., StoreServer]]:
    """Starts a server of one's own: `make_store_server("--maxmemory", "10mb", durable=True)`."""
    made: list[StoreServer] = []

    def make(*options: str, durable: bool = True) -> StoreServer:
        folder = short_dir / f"store{len(made)}"
        folder.mkdir()
        made.append(StoreServer(store_kind, folder, durable=durable, options=options))
        made[-1].start()
        return made[-1]

    yield make
    for server in made:
        server.stop()


@pytest.fixture
def fresh_store_server(make_store_server: Callable[..., StoreServer]) -> StoreServer:
    """A durable server of this test's own: kill, pause, restart it."""
    return make_store_server()


@pytest.fixture(scope="session")
def prefix(worker: str) -> str:
    """The prefix of the shared service's keys."""
    return f"__t_{worker}_{uuid.uuid4().hex[:6]}__"


@pytest.fixture(scope="session")
def service(store_server: StoreServer, new_folder: Callable[[str], Path], prefix: str) -> Iterator[ServiceProcess]:
    """A service shared by all tests of this worker, on `store_server`: do not stop it. To the store it is a user who
    may do no more than the documents say is needed."""
    with store_server.client() as client:
        access.allow(client, prefix=prefix)
    env = {"HEADWAY_REDIS_URL": access.url_of(store_server), "PRESSURE_PREFIX": prefix}
    process = ServiceProcess(new_folder("service"), env=env)
    try:
        yield process.start()
    finally:
        process.stop()
    with store_server.client() as client:
        assert access.denied(client) == []


@pytest.fixture
def make_service(short_dir: Path) -> Iterator[Callable[..., ServiceProcess]]:
    """Starts a service of one's own: `make_service(HEADWAY_REDIS_URL=…, PRESSURE_PREFIX=…)`.

    Without a store named it would be the embedded one, in a folder of its own. `start=False` returns it unstarted,
    `flags` are added to the command line.
    """
    made: list[ServiceProcess] = []
    numbers = itertools.count()

    def make(*, start: bool = True, flags: tuple[str, ...] = (), **env: str) -> ServiceProcess:
        folder = short_dir / f"service{next(numbers)}"
        folder.mkdir()
        process = ServiceProcess(folder, env={"HEADWAY_DATA_DIR": str(folder / "data")} | env, flags=flags)
        made.append(process)
        if start:
            process.start()
        return process

    yield make
    for process in made:
        process.end()


@pytest.fixture
def connect() -> Callable[[str], grpc.aio.Channel]:
    """Opens a channel of its own connection to an address; use it with `async with`."""

    def open_channel(address: str) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])

    return open_channel


@pytest.fixture
async def channel(
    service: ServiceProcess, connect: Callable[[str], grpc.aio.Channel]
) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to the shared service."""
    async with connect(service.address) as opened:
        yield opened


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> "queue_service_pb2_grpc.QueueServiceAsyncStub":
    """QueueService of the shared service."""
    return queue_service_pb2_grpc.QueueServiceStub(channel)


@pytest.fixture
def admin(channel: grpc.aio.Channel) -> "admin_service_pb2_grpc.AdminServiceAsyncStub":
    """AdminService of the shared service."""
    return admin_service_pb2_grpc.AdminServiceStub(channel)


@pytest.fixture
async def queue_name(
    request: pytest.FixtureRequest, stub: "queue_service_pb2_grpc.QueueServiceAsyncStub"
) -> AsyncIterator[str]:
    """A name that nobody else uses; whatever queue has it afterwards is deleted."""
    readable = re.sub(r"\W+", "-", request.node.originalname)[:60]
    name = f"{readable}-{uuid.uuid4().hex[:8]}"
    yield name
    try:
        await stub.Delete(queue_service_pb2.DeleteRequest(queue=name), timeout=10)
    except grpc.aio.AioRpcError as error:
        # A test may have made it undeletable on purpose; the store goes away with the session.
        if error.code() not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION):
            raise


@pytest.fixture
def redis_client(store_server: StoreServer) -> Iterator[redis.Redis]:
    """A raw client of the shared store server."""
    with store_server.client() as client:
        yield client
