"""The chart, rendered by the real helm."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import jsonschema
import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/headway"
# Sets of values that people may have; each is rendered by every test that says something of all.
# Of objects that are not Kubernetes' own; what each file is made from stands in it.
CUSTOM = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "crds").glob("*.json")}
CASES = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))
Object: TypeAlias = dict[str, Any]


def program() -> Path:
    """helm: the one that `make` put beside this interpreter, or one of the path. Skips, or fails under CI."""
    own = Path(sys.executable).with_name("helm")
    found = str(own) if own.exists() else shutil.which("helm")
    if found is None:
        reason = "there is no helm, neither from tools/helm.py nor on the path"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return Path(found)


def helm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs helm, away from any cluster that this machine's user may have."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
    command = [str(program()), *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=env | {"KUBECONFIG": os.devnull}
    )


def values_of(case: str) -> list[str]:
    """The words that name a set of values."""
    return ["--values", str(CHART / "ci" / f"{case}-values.yaml")]


@functools.cache
def template(case: str, *settings: str) -> subprocess.CompletedProcess[str]:
    """Renders the chart; `settings` are `name=value`."""
    said = [word for setting in settings for word in ("--set", setting)]
    return helm("template", "hw", CHART, "--namespace", "work", *values_of(case), *said)


def rendered(case: str, *settings: str) -> list[Object]:
    """Every object that the chart makes of a set of values."""
    done = template(case, *settings)
    assert done.returncode == 0, done.stderr
    # In C it takes a tenth of the time.
    return [each for each in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if each]


def validate(one: Object, version: str) -> None:
    """Raises unless the object is one that a cluster of this version takes, without a field that it would not know."""
    if one["kind"] in CUSTOM:
        jsonschema.validate(one, CUSTOM[one["kind"]])
    else:
        kubernetes_validate.validate(one, version, strict=True)


def of_kind(objects: Sequence[Object], kind: str, component: str | None = None) -> list[Object]:
    """Those of one kind; `component` as the label says."""
    label = "app.kubernetes.io/component"
    found = [each for each in objects if each["kind"] == kind]
    return [each for each in found if component in (None, each["metadata"]["labels"].get(label))]


def the(objects: Sequence[Object], kind: str, component: str | None = None) -> Object:
    """The only one of its kind."""
    (found,) = of_kind(objects, kind, component)
    return found


def pod_specs(objects: Sequence[Object]) -> list[Object]:
    """The specification of every kind of pod."""
    made = [each["spec"]["template"]["spec"] for each in objects if "template" in each.get("spec", {})]
    return made + [each["spec"] for each in of_kind(objects, "Pod")]


def containers(spec: Object) -> list[Object]:
    """All containers of a pod, in the order in which they run."""
    return [*spec.get("initContainers", []), *spec["containers"]]


def settings_of(objects: Sequence[Object]) -> dict[str, str]:
    """The variables that the service's container gets, but for those from a Secret."""
    configured: dict[str, str] = the(objects, "ConfigMap", "service")["data"]
    (container,) = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    said = {each["name"]: each["value"] for each in container.get("env", []) if "value" in each}
    return configured | said


def variables_of(objects: Sequence[Object]) -> set[str]:
    """The names of all variables that the service's container gets."""
    (container,) = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return {*settings_of(objects), *(each["name"] for each in container.get("env", []))}


def pod_of(objects: Sequence[Object]) -> Object:
    """The specification of the service's pods."""
    spec: Object = the(objects, "Deployment")["spec"]["template"]["spec"]
    return spec


def files_of(objects: Sequence[Object]) -> dict[str, tuple[str, str]]:
    """The files that the service's container has of Secrets: path → Secret and key."""
    spec = pod_of(objects)
    (container,) = spec["containers"]
    at = {mount["name"]: mount["mountPath"] for mount in container.get("volumeMounts", [])}
    return {
        f"{at[volume['name']]}/{item['path']}": (volume["secret"]["secretName"], item["key"])
        for volume in spec.get("volumes", [])
        if "secret" in volume
        for item in volume["secret"]["items"]
    }
