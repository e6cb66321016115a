"""What docs/security.md tells one to do works."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from docs.blocks import blocks_of
from headwayd.access import auth_file
from headwayd.config.settings import Settings
from headwayd.domain.access import CallerRole, Quotas

pytestmark = pytest.mark.any_store

BLOCKS = blocks_of((Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text())


def test_the_commands_make_a_token_and_the_digest_that_the_file_wants(tmp_path: Path) -> None:
    [block] = [block for block in BLOCKS if block.is_run]
    done = subprocess.run(["bash", "-e"], input=block.text, cwd=tmp_path, capture_output=True, text=True, check=True)
    digest = done.stdout.strip()
    text = f'[[tokens]]\nname = "a"\nsha256 = "{digest}"\ngrants = [{{ roles = ["admin"] }}]\n'
    assert len(auth_file.read([text.encode()]).tokens) == 1
    [token] = tmp_path.iterdir()
    assert len(token.read_text()) >= 32


def test_the_example_of_the_file_is_what_the_service_reads() -> None:
    [block] = [block for block in BLOCKS if "toml" in block.words]
    said = auth_file.read([block.text.encode()])
    [invoices] = said.tokens.values()
    assert (invoices.name, invoices.namespace) == ("invoices-api", "billing")
    assert invoices.roles_on("invoices.new") == CallerRole.PRODUCER | CallerRole.WATCHER
    assert invoices.roles_on("orders") == 0
    assert said.certificates["worker.billing.example"].roles_on("anything") == CallerRole.CONSUMER
    quotas = said.quotas["billing"]
    assert None not in [getattr(quotas, name) for name in Quotas.__dataclass_fields__]


def test_the_command_that_serves_needs_no_insecure() -> None:
    [block] = [block for block in BLOCKS if "headwayd serve" in block.text]
    flags = dict(re.findall(r"--([a-z-]+) (\S+)", block.text))
    settings = Settings.load({name.replace("-", "_"): value for name, value in flags.items()})
    assert settings.knows_callers
    assert not settings.insecure
    assert os.environ.get("HEADWAY_INSECURE") is None
