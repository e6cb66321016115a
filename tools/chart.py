"""What of the chart is made from elsewhere: the schema of its `settings`, from the service's; the table of its README,
from values.yaml.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic.fields import FieldInfo

from headwayd.config.settings import Settings

CHART = Path(__file__).resolve().parent.parent / "helm/headway"
SCHEMA, VALUES, README = CHART / "values.schema.json", CHART / "values.yaml", CHART / "README.md"
# These follow from other values: the ports, the store, and what is mounted from Secrets.
NOT_SAID = frozenset(
    "listen http_listen data_dir redis_url redis_server redis_port redis_db redis_password_file "
    "redis_sentinel_password_file tls_cert tls_key tls_client_ca auth_file".split()
)
# The chart counts with them, or says them always.
REQUIRED = ("insecure", "drain_delay", "shutdown_grace")
BEGIN, END = "<!-- made from values.yaml by `make gen` -->\n", "<!-- end -->\n"
# As the service reads spans, in writing only: the service refuses what is out of range.
_SPAN = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h|d)?$"


def schema_of(field: FieldInfo) -> dict[str, Any]:
    """What a setting may be in values.yaml."""
    kind: Any = field.annotation
    if get_origin(kind) in (Union, UnionType):  # not given, in the chart, is not said
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    rules: dict[str, Any] = {"description": field.description}
    if get_origin(kind) is Literal:
        return rules | {"enum": list(get_args(kind))}
    if kind is bool:
        return rules | {"type": "boolean"}
    if get_origin(kind) is tuple:  # written with commas between
        return rules | {"type": "string"}
    if kind is timedelta:
        return rules | {"type": "string", "pattern": _SPAN}
    names = {Ge: ("ge", "minimum"), Le: ("le", "maximum"), MinLen: ("min_length", "minLength")}
    names |= {MaxLen: ("max_length", "maxLength")}
    # Secrets have no type here: they have no place in values.
    rules["type"] = {int: "integer", float: "number", str: "string", Path: "string"}[kind]
    for rule in field.metadata:
        if type(rule) in names:
            attribute, name = names[type(rule)]
            rules[name] = getattr(rule, attribute)
    return rules


def schema_text() -> str:
    """The text of values.schema.json: the one that is there, with the settings of now."""
    schema = json.loads(SCHEMA.read_text())
    schema["properties"]["settings"] = {
        "type": "object",
        "additionalProperties": False,
        "required": list(REQUIRED),
        "properties": {name: schema_of(field) for name, field in Settings.model_fields.items() if name not in NOT_SAID},
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _told(node: yaml.MappingNode, values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """(dotted name, default, comment) of everything that has a comment, parts after the whole."""
    for key, part in node.value:
        value, name = values[key.value], (*path, key.value)
        comment = _comment_above(key.start_mark.line)
        has_parts = isinstance(part, yaml.MappingNode) and not part.flow_style and _comment_above(part.start_mark.line)
        if comment:
            shown = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
            yield [".".join(name), "" if has_parts else f"`{shown}`", comment]
        if has_parts:
            yield from _told(part, value, name)


def _comment_above(line: int) -> str:
    """The comment that ends just above a line of values.yaml."""
    lines = VALUES.read_text().splitlines()
    words: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        words.insert(0, lines[line].lstrip().removeprefix("#").strip())
    return " ".join(words)


def values_table() -> str:
    """One row for every value."""
    root = yaml.compose(VALUES.read_text())
    assert isinstance(root, yaml.MappingNode)
    rows = [f"| `{name}` | {value} | {text} |" for name, value, text in _told(root, yaml.safe_load(VALUES.read_text()))]
    return "\n".join(["| value | default | what it is |", "|---|---|---|", *rows]) + "\n"


def readme_text() -> str:
    """The text of README.md: the one that is there, with the table of now."""
    head, _, rest = README.read_text().partition(BEGIN)
    return head + BEGIN + values_table() + END + rest.partition(END)[2]
