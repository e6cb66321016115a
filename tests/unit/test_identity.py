"""Who a process says it is in what it sends by OTLP: as the variables of OpenTelemetry tell, else as it is."""

from __future__ import annotations

import pytest

from headwayd import __version__
from headwayd.telemetry.identity import resource_of

OURS = ("headway", __version__, "process")


@pytest.mark.parametrize(
    ("name", "attributes", "told"),
    [
        (None, None, OURS),
        ("orders", None, ("orders", *OURS[1:])),
        ("", None, OURS),
        ("", "service.name=orders", ("orders", *OURS[1:])),
        (None, "service.name=", OURS),
        (None, " service.name = orders ,service.version=7", ("orders", "7", "process")),
        ("first", "service.name=second", ("first", *OURS[1:])),
        (None, "service.name.prefix=a,my.service.name=b,peer=service.name", OURS),
        (None, "my.service.version=1,deployment=service.instance.id=2", OURS),
        (None, "service.instance.id=mine", (*OURS[:2], "mine")),
        (None, "nonsense,,service.name", OURS),
    ],
)
def test_what_is_told_wins_and_what_is_told_empty_is_not_told(
    monkeypatch: pytest.MonkeyPatch, name: str | None, attributes: str | None, told: tuple[str, str, str]
) -> None:
    for variable, value in (("OTEL_SERVICE_NAME", name), ("OTEL_RESOURCE_ATTRIBUTES", attributes)):
        if value is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, value)
    found = resource_of("process").attributes
    assert tuple(found[f"service.{each}"] for each in ("name", "version", "instance.id")) == told
