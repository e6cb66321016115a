"""Makes traced-job.svg anew: a service of its own, three applications that trace, and the trace that a receiver got."""
# ruff: noqa: INP001 - a script, not a package

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from html import escape
from pathlib import Path

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer

import headway

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from harness.otlp import OtlpReceiver, SeenSpan  # noqa: E402 - found by the line above

JOB = "order-3"
WORK_S = 0.12
COLOURS = {"shop": "#8250df", "headway": "#0969da", "packing": "#1a7f37", "mailing": "#bc4c00"}
WIDTH, LABELS, ROW, TOP, BOTTOM = 980, 300, 24, 46, 30
INK, PAPER, RULE, MUTED = "#1f2328", "#ffffff", "#d1d9e0", "#59636e"


# -- the applications -------------------------------------------------------------------------------------------------


class Applications:
    """Each with tracing of its own, all to the same receiver."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._providers: list[TracerProvider] = []

    def tracer(self, name: str) -> Tracer:
        """Of a new application."""
        provider = TracerProvider(resource=Resource.create({"service.name": name}), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=self._endpoint)))
        self._providers.append(provider)
        return provider.get_tracer(name)

    def close(self) -> None:
        """Everything is sent."""
        for provider in self._providers:
            provider.shutdown()


def handler(tracer: Tracer, name: str, then: headway.Queue | None = None) -> Callable[[headway.Lease], Awaitable[None]]:
    """Works for a while within a span below that of whoever put the message, then puts one of its own."""

    async def handle(lease: headway.Lease) -> None:
        with tracer.start_as_current_span(name, context=lease.trace_context):
            await asyncio.sleep(WORK_S)
            if then is not None:
                await then.put(lease.payload, id=lease.message.id)

    return handle


async def until_finished(queue: headway.Queue) -> None:
    """Watches the job to its end there."""
    async for update in queue.watch(JOB):
        if isinstance(update, headway.Finished) and update.outcome is headway.Outcome.DONE:
            return


async def play(address: str, receiver: OtlpReceiver) -> Sequence[SeenSpan]:
    """Three orders are packed and mailed, one after the other; the spans of the last one."""
    applications = Applications(receiver.endpoint)
    shop, packing, mailing = map(applications.tracer, ("shop", "packing", "mailing"))
    async with headway.connect(address) as client:
        orders, mails = client.queue("orders"), client.queue("mails")
        for queue in (orders, mails):
            await queue.create(limit=1)
        for n in (1, 2, 3):
            with shop.start_as_current_span("checkout"):
                await orders.put(b"two books", id=f"order-{n}")
        done = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(orders.run(handler(packing, "pack", mails), stop=done))
            tasks.create_task(mails.run(handler(mailing, "send mail"), stop=done))
            for queue in (orders, mails):
                await until_finished(queue)
            done.set()
    await asyncio.to_thread(applications.close)
    await receiver.until("Ack", 6)
    await receiver.until("Work", 6)
    wanted = {one.trace_id for one in receiver.spans if one.attributes.get("messaging.message.id") == JOB}
    return [one for one in receiver.spans if one.trace_id in wanted]


# -- the picture ------------------------------------------------------------------------------------------------------


def in_order(spans: Sequence[SeenSpan], parent_id: str = "", depth: int = 0) -> Iterator[tuple[int, SeenSpan]]:
    """Each span behind its parent, with its depth."""
    # The store tells whole milliseconds: what begins in the same one is ordered by its end.
    for span in sorted(spans, key=lambda one: (one.start_ns // 1_000_000, one.end_ns)):
        if span.parent_id == parent_id:
            yield depth, span
            yield from in_order(spans, span.span_id, depth + 1)


def drawn(spans: Sequence[SeenSpan]) -> str:
    """The trace as rows of bars on one axis of time."""
    rows = list(in_order(spans))
    began, ended = min(one.start_ns for one in spans), max(one.end_ns for one in spans)
    height = TOP + ROW * len(rows) + BOTTOM

    def x(at_ns: int) -> float:
        return LABELS + (at_ns - began) / (ended - began) * (WIDTH - LABELS - 90)

    text = 'font-family="ui-monospace, SFMono-Regular, Menlo, monospace" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {text} role="img">',
        f"<title>One trace: {escape(JOB)} through {', '.join(COLOURS)}</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="{PAPER}" stroke="{RULE}"/>',
    ]
    for n, (service, colour) in enumerate(COLOURS.items()):
        parts.append(f'<rect x="{16 + n * 110}" y="14" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{34 + n * 110}" y="24" fill="{INK}">{service}</text>')
    step_ms = next(step for step in (10, 20, 50, 100, 200, 500, 1_000) if (ended - began) / 1e6 / step <= 8)
    for at_ms in range(0, int((ended - began) / 1e6) + 1, step_ms):
        at = x(began + at_ms * 1_000_000)
        parts.append(f'<path d="M{at:.1f} {TOP - 8}V{height - BOTTOM + 2}" stroke="{RULE}"/>')
        parts.append(f'<text x="{at:.1f}" y="{height - 10}" fill="{MUTED}" text-anchor="middle">{at_ms} ms</text>')
    for n, (depth, span) in enumerate(rows):
        parts += _row(span, depth, TOP + n * ROW, x)
    return "\n".join([*parts, "</svg>", ""])


def _row(span: SeenSpan, depth: int, y: float, x: Callable[[int], float]) -> Iterator[str]:
    colour = COLOURS[str(span.resource["service.name"])]
    begins, width = x(span.start_ns), max(x(span.end_ns) - x(span.start_ns), 2.0)
    yield f'<text x="{16 + depth * 14}" y="{y + 13}" fill="{INK}">{escape(span.name)}</text>'
    yield f'<rect x="{begins:.1f}" y="{y + 2}" width="{width:.1f}" height="14" rx="2" fill="{colour}"/>'
    label = f"{(span.end_ns - span.start_ns) / 1e6:,.1f} ms"
    yield f'<text x="{begins + width + 6:.1f}" y="{y + 13}" fill="{MUTED}">{label}</text>'
    for event in span.events:
        at = x(event.at_ns)
        yield f'<circle cx="{at:.1f}" cy="{y + 9}" r="6" fill="{PAPER}" stroke="{colour}"/>'
        position = event.attributes["headway.position"]
        yield f'<text x="{at:.1f}" y="{y + 12.5}" fill="{INK}" font-size="9" text-anchor="middle">{position}</text>'


async def main() -> None:
    """Plays the scene and writes the picture beside this file."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "REDIS_"))}
    async with OtlpReceiver() as receiver:
        with tempfile.TemporaryDirectory(prefix="hw-") as folder:
            command = [str(Path(sys.executable).parent / "headwayd"), "serve", "--listen", "127.0.0.1:0"]
            service = subprocess.Popen(  # noqa: ASYNC220, S603 - our own service; nothing else waits here
                [*command, "--data-dir", folder, "--otlp-endpoint", receiver.endpoint],
                env=environment | {"OTEL_BSP_SCHEDULE_DELAY": "50"},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            try:
                assert service.stdout is not None
                first_line = await asyncio.to_thread(service.stdout.readline)  # headwayd VERSION serving on ADDRESS (…
                spans = await play(first_line.partition(" serving on ")[2].split(" ")[0].rstrip(","), receiver)
            finally:
                service.terminate()
                await asyncio.to_thread(service.wait, 30)
    await asyncio.to_thread((HERE / "traced-job.svg").write_text, drawn(spans))


if __name__ == "__main__":
    asyncio.run(main())
