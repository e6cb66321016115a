"""What the chart asks of the service and the store, asked of real ones."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import httpx
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.charts import containers, rendered, settings_of, the
from harness import ServiceProcess, StoreServer, eventually, refused
from harness.figures import Figure
from headway.v1 import admin_service_pb2, admin_service_pb2_grpc, queue_service_pb2, queue_service_pb2_grpc
from headwayd.config.values import parse_span
from headwayd.rpc.server import QUEUE_SERVICE
from headwayd.store.data_folder import REWRITE_FROM

pytestmark = pytest.mark.any_store

MakeService: TypeAlias = Callable[..., ServiceProcess]
Connect: TypeAlias = Callable[[str], grpc.aio.Channel]
Health = health_pb2.HealthCheckResponse


@pytest.fixture(params=["by HTTP", "by gRPC"])
def deployment(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The pod of the service, for trying out, with how it is asked."""
    said = ("httpPort=0",) if request.param == "by gRPC" else ()
    spec: dict[str, Any] = the(rendered("valkey", *said), "Deployment")["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def service(make_service: MakeService, store_server: StoreServer) -> ServiceProcess:
    """A process with the settings that the chart gives it. Address and store are this machine's."""
    said = settings_of(rendered("valkey"))
    own = {"HEADWAY_LISTEN": "127.0.0.1:0", "HEADWAY_HTTP_LISTEN": "127.0.0.1:0", "HEADWAY_REDIS_URL": store_server.url}
    return make_service(**said | own)


def probes_of(deployment: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (container,) = deployment["containers"]
    return {name: container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}


@pytest.fixture
async def is_well(service: ServiceProcess, connect: Connect) -> AsyncIterator[Callable[[dict[str, Any]], Any]]:
    """Asks what a probe asks, as a kubelet does: a stock client, the probe's own patience."""
    async with connect(service.address) as channel, httpx.AsyncClient(base_url=service.http) as client:
        health: Any = health_pb2_grpc.HealthStub(channel)  # its stubs know no aio

        async def answer(probe: dict[str, Any]) -> bool:
            patience = probe["timeoutSeconds"]
            if "httpGet" in probe:
                return bool((await client.get(probe["httpGet"]["path"], timeout=patience)).status_code == 200)
            request = health_pb2.HealthCheckRequest(service=probe["grpc"]["service"])
            return bool((await health.Check(request, timeout=patience)).status == Health.SERVING)

        yield answer


async def test_every_probe_asks_for_what_is_served(
    deployment: dict[str, Any], is_well: Callable[[dict[str, Any]], Any]
) -> None:
    (container,) = deployment["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in probes_of(deployment).values():
        assert await is_well(probe)
        if "httpGet" in probe:
            assert probe["httpGet"] | {"path": ""} == {"port": "http", "path": "", "scheme": "HTTP"}
            assert "http" in ports
        else:
            assert probe["grpc"]["port"] == ports["grpc"]


async def test_what_is_asked_by_http_is_answered(service: ServiceProcess) -> None:
    """The probes of pods with certificates, and Prometheus."""
    made = rendered("secure")
    (container,) = the(made, "Deployment")["spec"]["template"]["spec"]["containers"]
    probes = {container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    (endpoint,) = the(made, "ServiceMonitor")["spec"]["endpoints"]
    async with httpx.AsyncClient(base_url=service.http, timeout=10) as client:
        for path in {*probes, endpoint["path"]}:
            assert (await client.get(path)).status_code == 200, path


async def test_where_the_route_leads_somebody_answers(service: ServiceProcess) -> None:
    said = ("httpRoute.enabled=true", "httpRoute.dashboard=true", "httpRoute.parentRefs[0].name=outside")
    (rule,) = the(rendered("secure", *said), "HTTPRoute")["spec"]["rules"]
    asked = {
        f"/{QUEUE_SERVICE.full_name}": ("POST", "/List", 200),
        "/queues": ("PUT", "/mails", 201),
        "/place.js": ("GET", "", 200),
        "/healthz": ("GET", "", 200),
        "/readyz": ("GET", "", 200),
        "/": ("GET", "", 307),
        "/dashboard": ("GET", "/", 200),
    }
    async with httpx.AsyncClient(base_url=service.http, timeout=10) as client:
        for match in rule["matches"]:
            begins = match["path"]["value"]
            verb, rest, status = asked.pop(begins)
            answer = await client.request(verb, begins + rest, json={})
            assert answer.status_code == status, begins
    assert not asked


async def test_a_pod_that_goes_is_unready_first_then_ends_waits_and_leaves_in_time(
    deployment: dict[str, Any],
    is_well: Callable[[dict[str, Any]], Any],
    service: ServiceProcess,
    connect: Connect,
    figure: Figure,
) -> None:
    delay: Any = parse_span(service.env["HEADWAY_DRAIN_DELAY"])
    async with connect(service.address) as channel:
        stub = queue_service_pb2_grpc.QueueServiceStub(channel)
        await stub.Create(queue_service_pb2.CreateRequest(queue="leaving"), timeout=5)
        waiting = stub.Get(queue_service_pb2.GetRequest(queue="leaving", wait=Duration(seconds=120)), timeout=120)

        async def is_waiting() -> bool:
            described = await stub.Describe(queue_service_pb2.DescribeRequest(queue="leaving"), timeout=5)
            return described.queue.counts.consumers_waiting == 1

        await eventually(is_waiting)
        service.signal(signal.SIGTERM)
        told_at = time.monotonic()
        probes = probes_of(deployment)

        async def is_unready() -> bool:
            return not await is_well(probes["readiness"])

        await eventually(is_unready)
        # While the cluster still sends calls they are served, and the pod is not killed for being unready.
        assert await is_well(probes["liveness"])
        await stub.Create(queue_service_pb2.CreateRequest(queue="meanwhile"), timeout=5)
        assert not waiting.done()
        with refused("SHUTTING_DOWN", grpc.StatusCode.UNAVAILABLE):
            await waiting
        assert timedelta(seconds=time.monotonic() - told_at) >= delay
    assert await asyncio.to_thread(service.wait, within=deployment["terminationGracePeriodSeconds"]) == 0
    took_s = time.monotonic() - told_at
    figure("from SIGTERM to the end of a pod", f"{took_s:.1f} s of {deployment['terminationGracePeriodSeconds']} s")


def test_the_test_pod_succeeds_step_by_step(service: ServiceProcess) -> None:
    pod = the(rendered("valkey"), "Pod")["spec"]
    printed = []
    for container in containers(pod):
        assert container["command"] == ["headway"]
        (variable,) = container["env"]
        assert variable == {"name": "HEADWAY_ADDRESS", "value": "hw-headway:7420"}
        command = [sys.executable, "-m", "headway.cli", *container["args"]]
        env = os.environ | {"HEADWAY_ADDRESS": service.address}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert "hello" in printed[1]


async def test_the_charts_own_store_keeps_what_it_accepts(
    make_service: MakeService, connect: Connect, short_dir: Path
) -> None:
    (container,) = the(rendered("valkey"), "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["valkey-server"]
    assert f"--auto-aof-rewrite-min-size {REWRITE_FROM}" in " ".join(container["args"])  # as the embedded store
    # Address and folder are this machine's; of an option that is said twice the last one counts.
    options = [word for word in container["args"] if word not in ("--port", "6379", "--dir", "/data")]
    store = StoreServer("valkey", short_dir, options=("--appendonly", "no", *options))
    store.start()
    try:
        service = make_service(HEADWAY_REDIS_URL=store.url)
        async with connect(service.address) as channel:
            admin = admin_service_pb2_grpc.AdminServiceStub(channel)
            told = (await admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest(), timeout=5)).store
        assert (told.durability, list(told.warnings)) == ("everysec", [])
        with store.client() as client:
            assert client.config_get("maxmemory")["maxmemory"] == str(192 * 2**20)
    finally:
        store.stop()
