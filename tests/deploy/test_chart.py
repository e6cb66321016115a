"""What the chart makes: sound by the real tools, refused where it cannot work, and fit for the service."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from itertools import pairwise
from typing import Any

import kubernetes_validate
import pytest
import yaml

from deploy.charts import (
    CASES,
    CHART,
    ROOT,
    Object,
    containers,
    helm,
    of_kind,
    pod_specs,
    rendered,
    settings_of,
    template,
    the,
    validate,
    values_of,
    variables_of,
)
from headwayd.config.names import variable_of
from headwayd.config.settings import Settings
from headwayd.config.values import parse_span

# From the chart's floor to the newest that the validator knows.
KUBERNETES = ("1.27", "1.29", "1.31", "1.33", "1.35", "1.37")


# Settings that the chart says, and that other parts of this version bring; and which of them a set of values is about.
COMING = frozenset("http_listen tls_cert tls_key tls_client_ca auth_file redis_password_file".split())
NEEDED = {"sentinel": {"durability"}, "secure": {"durability", "tls_cert"}, "everything": {"tls_cert"}}


@pytest.fixture(scope="module", params=CASES)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return rendered(request.param)


# -- sound ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_helm_finds_nothing_to_complain_of(case: str) -> None:
    done = helm("lint", "--strict", CHART, *values_of(case))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_is_one_of_kubernetes(objects: list[Object], version: str) -> None:
    for each in objects:
        validate(each, version)


def test_the_validator_would_notice() -> None:
    service = the(rendered("url"), "Deployment") | {"spec": {"replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(service, KUBERNETES[0])


def test_every_value_is_said_by_one_of_the_sets() -> None:
    def leaves(node: Any, path: str = "") -> set[str]:
        if not isinstance(node, dict) or not node:
            return {path}
        return set().union(*(leaves(value, f"{path}.{name}") for name, value in node.items()))

    said = [yaml.safe_load((CHART / "ci" / f"{case}-values.yaml").read_text()) for case in CASES]
    known = yaml.safe_load((CHART / "values.yaml").read_text())
    tops = {path.split(".")[1] for each in said for path in leaves(each)}
    assert tops == known.keys()


def test_the_chart_is_of_the_services_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


@pytest.mark.parametrize("document", ["helm/headway/README.md", "docs/operations.md"])
def test_every_command_that_installs_it_would_make_something(document: str) -> None:
    text = (ROOT / document).read_text().replace("\\\n", " ")
    commands = [shlex.split(line) for line in re.findall(r"^ +helm install (.*)$", text, re.MULTILINE)]
    assert commands
    for command in commands:
        name, chart, *words = command
        done = helm("template", name, ROOT / chart, *words)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


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
        ("ingress.enabled=true", "ingress.hosts is empty"),
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
    known = {variable_of(name) for name in COMING.union(Settings.model_fields)}
    assert variables_of(objects) <= known
    assert {"HEADWAY_LISTEN", "HEADWAY_REDIS_URL", "HEADWAY_INSECURE"} <= variables_of(objects)


def test_a_setting_that_follows_from_another_value_cannot_be_said_beside_it() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"]
    assert schema["additionalProperties"] is False
    assert schema["properties"].keys() == Settings.model_fields.keys() - COMING - {
        "listen", "data_dir", "redis_url", "redis_server", "redis_port", "redis_db"
    }  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_service_takes_the_settings_as_they_are_said(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing := NEEDED.get(case, set()) - Settings.model_fields.keys():
        pytest.skip(f"the service has no setting {', '.join(sorted(missing))} yet")
    objects = rendered(case)
    for name, value in settings_of(objects).items():
        monkeypatch.setenv(name, value)
    loaded = Settings.load()
    assert loaded.insecure is (case != "secure")
    (container,) = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert loaded.listen == (f"0.0.0.0:{container['ports'][0]['containerPort']}",)


def test_numbers_arrive_whole() -> None:
    said = settings_of(rendered("everything"))
    assert said["HEADWAY_MAX_REQUEST_BYTES"] == "16777216"


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


# -- fit for the cluster ----------------------------------------------------------------------------------------------


def test_every_pod_is_restricted_and_has_no_token(objects: list[Object]) -> None:
    for spec in pod_specs(objects):
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(spec):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]


def test_selectors_find_their_pods_and_no_others(objects: list[Object]) -> None:
    templates = {
        each["kind"]: each["spec"]["template"]["metadata"]["labels"]
        for each in objects
        if "template" in each.get("spec", {})
    }
    labels = [*templates.values(), *(pod["metadata"]["labels"] for pod in of_kind(objects, "Pod"))]
    for each in objects:
        spec = each.get("spec", {})
        if each["kind"] == "NetworkPolicy":
            selector = spec["podSelector"]["matchLabels"]
        elif "selector" in spec:
            selector = spec["selector"].get("matchLabels", spec["selector"])
        else:
            continue
        assert [one for one in labels if selector.items() <= one.items()] == [
            templates["StatefulSet" if each["metadata"]["name"].endswith("-valkey") else "Deployment"]
        ], each["metadata"]["name"]


def test_ports_are_called_as_containers_call_them(objects: list[Object]) -> None:
    named = {port["name"] for spec in pod_specs(objects) for each in containers(spec) for port in each.get("ports", [])}
    for service in of_kind(objects, "Service"):
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= named
    for policy in of_kind(objects, "NetworkPolicy"):
        assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} <= named


def test_there_is_one_address_for_all_and_one_for_each() -> None:
    services = {each["metadata"]["name"]: each["spec"] for each in of_kind(rendered("url"), "Service")}
    assert services["hw-headway-headless"]["clusterIP"] == "None"
    assert "clusterIP" not in services["hw-headway"]


def test_a_password_stands_in_the_secret_only() -> None:
    made = rendered("url")
    assert [each["kind"] for each in made if "secret@" in str(each)] == ["Secret"]


def test_a_single_pod_is_not_kept_from_moving_and_several_do_not_move_at_once() -> None:
    assert of_kind(rendered("url"), "PodDisruptionBudget") == []
    assert the(rendered("url", "replicas=2"), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_the_autoscaler_alone_says_how_many() -> None:
    made = rendered("everything")
    assert "replicas" not in the(made, "Deployment")["spec"]
    assert the(made, "HorizontalPodAutoscaler")["spec"]["minReplicas"] == 3
    assert the(rendered("valkey"), "Deployment")["spec"]["replicas"] == 2


def test_only_the_namespace_reaches_the_service_and_only_the_service_the_store() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(rendered("valkey"), "NetworkPolicy")}
    assert policies["hw-headway"]["ingress"][0]["from"] == [{"podSelector": {}}]
    (peer,) = policies["hw-headway-valkey"]["ingress"][0]["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "service"
    calls, scrapes = the(rendered("everything"), "NetworkPolicy")["spec"]["ingress"]
    own: Object = {"podSelector": {}}
    mail = {"namespaceSelector": {"matchLabels": {"team": "mail"}}}
    keda, monitoring = (
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
        for name in ("scaling", "monitoring")
    )
    assert (calls["from"], calls["ports"][0]["port"]) == ([own, mail, keda], "grpc")
    assert (scrapes["from"], scrapes["ports"][0]["port"]) == ([own, mail, monitoring], "http")
