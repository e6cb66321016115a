"""Values of the chart and settings of the service: refused where they cannot work, and taken as they are said."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trustme

from deploy.charts import CASES, CHART, Object, files_of, rendered, settings_of, template, the, variables_of
from headwayd.config.names import variable_of
from headwayd.config.settings import Settings
from headwayd.config.values import parse_span

AUTHORITY = trustme.CA()
CERTIFICATE = AUTHORITY.issue_cert("hw-headway")
# What files of Secrets hold, by their keys.
HELD = {
    "tls.crt": CERTIFICATE.cert_chain_pems[0].bytes(),
    "tls.key": CERTIFICATE.private_key_pem.bytes(),
    "ca.crt": AUTHORITY.cert_pem.bytes(),
}
# Settings that follow from other values.
FOLLOWING = frozenset(
    "listen http_listen data_dir redis_url redis_server redis_port redis_db redis_password_file "
    "redis_sentinel_password_file tls_cert tls_key "
    "tls_client_ca auth_file".split()
)
ROUTE = "httpRoute.enabled=true,httpRoute.parentRefs[0].name=outside"


def secret_file(folder: Path, path: str, key: str) -> Path:
    """A file as the kubelet would mount it, below a folder of this machine."""
    file = folder / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(HELD.get(key, b"secret"))
    return file


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("replica=3", "additional properties 'replica'"),
        ("settings.drain_dely=5s", "additional properties 'drain_dely'"),
        ("settings.redis_url=redis://h", "additional properties 'redis_url'"),
        ("settings.listen=0.0.0.0:1", "additional properties 'listen'"),
        ("settings.drain_delay=soon", "/settings/drain_delay"),
        ("settings.max_batch_messages=5001", "/settings/max_batch_messages"),
        ("settings.max_batch_messages=0", "/settings/max_batch_messages"),
        ("settings.insecure=yes", "/settings/insecure"),
        ("settings.log_format=xml", "/settings/log_format"),
        ("settings.shutdown_grace=null", "missing property 'shutdown_grace'"),
        ("store.url=http://h", "/store/url"),
        ("replicas=-1", "/replicas"),
        ("port=80", "/port"),
        ("service.type=External", "/service/type"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
        ("podDisruptionBudget.maxUnavailable=0", "/podDisruptionBudget/maxUnavailable"),
        ("settings.insecure=false", "settings.insecure=true says that"),
        ("tls.existingSecret=cert,settings.insecure=false", "say who may call"),
        ("settings.tls_cert=/x", "additional properties 'tls_cert'"),
        ("settings.keda=maybe", "/settings/keda"),
        ("httpPort=80", "/httpPort"),
        ("httpPort=7420", "port and httpPort are the same"),
        ("preStopSeconds=-1", "/preStopSeconds"),
        ("tls.clients=true", "tls.clients needs tls.existingSecret"),
        ("store.url=redis+sentry://h", "/store/url"),
        ("store.sentinel.addresses={host}", "/store/sentinel/addresses/0"),
        ("store.cluster.addresses={h:1}", "say where queues are kept, once"),
        ("keda.scaledObjects[0].name=mailer", "/keda/scaledObjects/0"),
        ("prometheusRule.disabled={Nothing}", "/prometheusRule/disabled/0"),
        ("grpcRoute.enabled=true", "grpcRoute.parentRefs names no gateway"),
        ("httpRoute.enabled=true", "httpRoute.parentRefs names no gateway"),
        (f"{ROUTE},httpRoute.dashboard=true,settings.dashboard=false", "httpRoute.dashboard needs settings.dashboard"),
        (f"{ROUTE},httpRoute.dashboard=true,settings.http_calls=false", "httpRoute.dashboard needs settings.dashboard"),
        (f"{ROUTE},settings.http_calls=false", "lets /headway.v1.QueueService through, which is not served"),
        (f"{ROUTE},settings.http_calls=false,httpRoute.paths={{/healthz,/queues/mails}}", "lets /queues/mails through"),
        ("httpRoute.dashboard=yes", "/httpRoute/dashboard"),
        ("ingress.enabled=true", "ingress.hosts is empty"),
        ("env[0].name=HEADWAY_MAX_WAIT", "env names HEADWAY_MAX_WAIT"),
        ("env[0].name=REDIS_PORT", "env names REDIS_PORT"),
        ("env[0].value=1", "/env/0"),
        ("store.url=", "say where queues are kept, once"),
        ("valkey.enabled=true", "say where queues are kept, once"),
        ("store.existingSecret.name=other", "say where queues are kept, once"),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(setting: str, complaint: str) -> None:
    done = template("url", setting)
    assert (done.returncode, done.stdout) == (1, "")
    assert complaint in done.stderr


# -- fit for the service ----------------------------------------------------------------------------------------------


def test_every_variable_is_a_setting_of_the_service(objects: list[Object]) -> None:
    known = {variable_of(name) for name in Settings.model_fields}
    assert {name for name in variables_of(objects) if not name.startswith("OTEL_")} <= known
    assert {"HEADWAY_LISTEN", "HEADWAY_REDIS_URL", "HEADWAY_INSECURE"} <= variables_of(objects)


def test_variables_that_are_no_settings_come_behind_the_charts_own() -> None:
    (container,) = the(rendered("everything"), "Deployment")["spec"]["template"]["spec"]["containers"]
    own, named, secret = container["env"]
    assert own["name"] == "HEADWAY_REDIS_URL"
    assert named == {"name": "OTEL_SERVICE_NAME", "value": "queues"}
    assert secret["valueFrom"] == {"secretKeyRef": {"name": "receiver", "key": "headers"}}
    (alone,) = the(rendered("valkey", "env[0].name=OTEL_SERVICE_NAME", "env[0].value=queues"), "Deployment")["spec"][
        "template"
    ]["spec"]["containers"]
    assert alone["env"] == [named]


def test_a_setting_that_follows_from_another_value_cannot_be_said_beside_it() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"]
    assert schema["additionalProperties"] is False
    assert schema["properties"].keys() == Settings.model_fields.keys() - FOLLOWING
    assert Settings.model_fields.keys() >= FOLLOWING


@pytest.mark.parametrize("case", CASES)
def test_the_service_takes_the_settings_as_they_are_said(
    case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    objects = rendered(case)
    there = {path: secret_file(tmp_path, path, key) for path, (_, key) in files_of(objects).items()}
    for name, value in settings_of(objects).items():
        monkeypatch.setenv(name, str(there.get(value, value)))
    loaded = Settings.load()
    assert loaded.insecure is (case != "secure")
    (container,) = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    ports = [each["containerPort"] for each in container["ports"]]
    # Of both families: gRPC takes the one for the other.
    assert loaded.listen == (f"0.0.0.0:{ports[0]}",)
    assert loaded.http_listen == (f"[::]:{ports[1]}" if ports[1:] else None)


def test_numbers_arrive_whole() -> None:
    said = settings_of(rendered("everything"))
    assert said["HEADWAY_MAX_REQUEST_BYTES"] == "16777216"
    assert said["HEADWAY_TRACE_RATIO"] == "0.25"


@pytest.mark.parametrize(
    ("before", "delay", "grace", "seconds"),
    [
        (0, "0s", "0s", 30),
        (0, "5s", "10s", 45),
        (7, "5s", "10s", 52),
        (0, "1500ms", "1s", 33),
        (0, "1.5m", "30s", 150),
        (300, "5m", "5m", 930),
    ],
)
def test_the_cluster_waits_longer_than_the_service_takes_to_go(
    before: int, delay: str, grace: str, seconds: int
) -> None:
    said = (f"preStopSeconds={before}", f"settings.drain_delay={delay}", f"settings.shutdown_grace={grace}")
    spec = the(rendered("url", *said), "Deployment")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == seconds
    spans: list[Any] = [parse_span(text) for text in (delay, grace)]
    assert seconds >= before + sum(span.total_seconds() for span in spans) + 20
    hook = spec["containers"][0].get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
    assert hook == ([*"python -c".split(), f"import time; time.sleep({before})"] if before else None)


def test_a_change_of_settings_or_store_restarts_the_pods() -> None:
    def annotations(*settings: str) -> object:
        return the(rendered("url", *settings), "Deployment")["spec"]["template"]["metadata"]["annotations"]

    seen = [annotations(), annotations("settings.log_level=debug"), annotations("store.url=redis://other")]
    assert all(one != other for one, other in pairwise(seen))
    assert annotations() == annotations("podDisruptionBudget.maxUnavailable=2")
