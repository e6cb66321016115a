"""The pictures of the dashboard in the documents: HEADWAY_SCREENSHOTS=1 makes them anew."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from playwright.async_api import Browser

from browser.dashboards import look_at, queue_path
from browser.test_dashboard_acts import start  # noqa: F401 - a fixture
from harness import ServiceProcess
from headway.v1 import message_pb2, queue_pb2, queue_service_pb2
from headway.v1.admin_service_pb2_grpc import AdminServiceStub
from headway.v1.queue_service_pb2_grpc import QueueServiceStub
from wire.calls import Line, Message, span

pytestmark = [pytest.mark.any_store, pytest.mark.timeout(300)]
WORTH_SEEING_S = 100  # so that the pictures of what was have something to show
# Name, puts per second, limit, seconds of work, share that fails, workers.
SCENE = (
    ("invoices", 2.0, 3, 2.2, 0.05, 6),
    ("mail", 20.0, 4, 0.4, 0.05, 10),
    ("reports/monthly", 0.5, 2, 5.0, 0.25, 2),
    ("search-index", 40.0, 4, 0.05, 0.0, 4),
    ("thumbnails", 60.0, 0, 0.05, 0.0, 8),
    ("video-transcode", 0.5, 3, 6.0, 0.05, 3),
    ("webhooks", 25.0, 16, 0.3, 0.12, 16),
)


async def put(line: Line, rate: float) -> None:
    number = 0
    while True:
        number += 1
        await line.put(Message(id=f"{line.name.split('/')[-1]}-{number:05d}", payload=b"x"))
        await asyncio.sleep(random.expovariate(rate))


async def work(line: Line, consumer: str, work_s: float, failing: float) -> None:
    get = queue_service_pb2.GetRequest(queue=line.name, consumer=consumer, wait=span(30_000))
    while True:
        for delivery in (await line.stub.Get(get)).deliveries:
            took = random.uniform(0.5, 1.5) * work_s
            for page in range(1, 6 if took > 1 else 1):
                await asyncio.sleep(took / 6)
                progress = message_pb2.Progress(fraction=page / 6, note=f"page {page} of 6")
                extend = queue_service_pb2.ExtendRequest(queue=line.name, leases=[delivery.lease], progress=progress)
                await line.stub.Extend(extend)
            await asyncio.sleep(took / 6 if took > 1 else took)
            if random.random() < failing:
                await line.delay(delivery.lease, delay_ms=0, reason="smtp: connection refused")
            else:
                await line.ack(delivery.lease)


@pytest.mark.skipif(os.environ.get("HEADWAY_SCREENSHOTS") != "1", reason="HEADWAY_SCREENSHOTS=1 makes pictures")
async def test_pictures_are_made(
    browser: Browser,
    start: Callable[..., ServiceProcess],  # noqa: F811
    screenshot: Callable[[str], Path],
) -> None:
    service = start(HEADWAY_DASHBOARD_ACTIONS="true")
    async with grpc.aio.insecure_channel(service.address) as channel, asyncio.TaskGroup() as tasks:
        stub, admin = QueueServiceStub(channel), AdminServiceStub(channel)
        busy = []
        for name, rate, limit, work_s, failing, workers in SCENE:
            line = Line(stub, name, admin)
            await line.create(limit=limit, retry=queue_pb2.Retry(max_attempts=2, min_backoff=span(1_000)))
            busy.append(tasks.create_task(put(line, rate)))
            busy += [tasks.create_task(work(line, f"worker-{n}", work_s, failing)) for n in range(1, workers + 1)]
        full = Line(stub, "exports", admin)
        await full.create(bound=200)
        await full.put(*[b"x"] * 200)
        await Line(stub, "archive", admin).create()
        await stub.Close(queue_service_pb2.CloseRequest(queue="archive"))
        pages = {}
        for scheme in ("light", "dark"):
            context = await browser.new_context(
                base_url=service.http,
                color_scheme=scheme,
                viewport={"width": 1240, "height": 700},
            )
            for view, path in (("queues", "/dashboard/"), ("queue", queue_path("reports/monthly"))):
                pages[f"dashboard-{view}-{scheme}"] = page = await context.new_page()
                await look_at(page, path)
        await asyncio.sleep(WORTH_SEEING_S)  # no condition: time itself is what is shown
        for name, page in pages.items():
            await page.bring_to_front()
            await page.screenshot(path=screenshot(name))
        for task in busy:
            task.cancel()
