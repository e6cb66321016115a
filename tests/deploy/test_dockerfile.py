"""The Dockerfile as text; that it builds and serves is shown in tests/image."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

from deploy.charts import CHART, ROOT, containers, pod_specs, rendered
from headwayd.config.names import variable_of
from headwayd.config.settings import Settings

TEXT = (ROOT / "Dockerfile").read_text()
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
FINAL = TEXT[TEXT.rindex("\nFROM ") :]


def test_the_linter_finds_nothing() -> None:
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([program, ROOT / "Dockerfile"], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_base_has_a_tag_of_the_python_that_the_project_needs() -> None:
    (image,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", TEXT, re.MULTILINE)
    assert re.fullmatch(r"python:3\.11-slim-\w+", image)
    assert re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE) == ["${PYTHON_IMAGE}"] * 2


def test_the_label_has_the_version_of_the_project() -> None:
    assert f"\nARG VERSION={VERSION}\n" in FINAL


def test_every_variable_is_a_setting_and_none_opens_the_service_unasked() -> None:
    said = set(re.findall(r"\b(HEADWAY_\w+)=", FINAL))
    assert said == {"HEADWAY_DATA_DIR", "HEADWAY_LISTEN", "HEADWAY_LOG_FORMAT"}
    assert said <= {variable_of(name) for name in Settings.model_fields}


def test_nothing_needs_a_shell() -> None:
    for word in ("ENTRYPOINT", "CMD"):
        (form,) = re.findall(rf"^{word} (.*)$", FINAL, re.MULTILINE)
        assert form.startswith("[")
    assert re.search(r"HEALTHCHECK .*CMD \[", FINAL)
    assert "\nRUN " not in FINAL


def test_only_what_the_build_copies_is_sent_to_it() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {word for line in re.findall(r"^COPY (?!--)(.*) \S+$", TEXT, re.MULTILINE) for word in line.split()}
    assert kept == copied


def test_the_image_says_what_it_is() -> None:
    labels = set(re.findall(r"org\.opencontainers\.image\.([\w.]+)=", FINAL))
    assert labels == {"title", "description", "licenses", "version", "revision", "base.name"}


def test_what_is_built_with_stays_behind() -> None:
    assert re.findall(r"^(?:COPY|ADD) (.*)$", FINAL, re.MULTILINE) == [
        "--from=build /opt/headway /opt/headway",
        "--from=build --chown=10001:10001 /var/lib/headway /var/lib/headway",
    ]


def test_the_chart_runs_the_image_as_its_user_and_on_its_ports() -> None:
    (user,) = re.findall(r"^USER (\d+):\1$", FINAL, re.MULTILINE)
    ((grpc_port, http_port),) = re.findall(r"^EXPOSE (\d+) (\d+)$", FINAL, re.MULTILINE)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert (values["port"], values["httpPort"]) == (int(grpc_port), int(http_port))
    for spec in pod_specs(rendered("url")):
        assert spec["securityContext"]["runAsUser"] == int(user)
        assert {each["image"] for each in containers(spec)} == {f"headway:{VERSION}"}
