"""What the chart makes: sound by the real tools, and fit for the cluster."""

from __future__ import annotations

import re
import shlex
import tomllib
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
    the,
    validate,
    values_of,
)

# From the chart's floor to the newest that the validator knows.
KUBERNETES = ("1.27", "1.29", "1.31", "1.33", "1.35", "1.37")


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


def test_every_name_that_the_certificate_must_be_good_for_is_told() -> None:
    called = {the(rendered("secure"), "ServiceMonitor")["spec"]["endpoints"][0]["tlsConfig"]["serverName"]}
    (trigger,) = the(rendered("secure"), "ScaledObject")["spec"]["triggers"]
    called.add(trigger["metadata"]["scalerAddress"].rpartition(":")[0].replace(".work.", ".NAMESPACE."))
    called |= {service["metadata"]["name"] for service in of_kind(rendered("secure"), "Service")}
    told = (CHART / "README.md").read_text()
    assert [name for name in called if f"`{name}`" not in told] == []


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
