"""What docs/tracing.md says of names is what the code has, and its picture is one of them."""

from __future__ import annotations

import re

from docs.blocks import ROOT
from headwayd.telemetry import names

TEXT = (ROOT / "docs/tracing.md").read_text()
PICTURE = (ROOT / "docs/images/traced-job.svg").read_text()
SPELLED = {value for name, value in vars(names).items() if name.isupper()}


def test_every_attribute_and_event_has_a_row_and_every_row_is_one() -> None:
    rows = set(re.findall(r"^\| `([a-z]+\.[a-z_.]+)` \|", TEXT, re.MULTILINE))
    assert rows == {value for value in SPELLED if "." in value}


def test_every_value_of_ours_is_told() -> None:
    values = {value for value in SPELLED if "." not in value}
    assert len(values) >= 8
    assert not [value for value in values if not re.search(rf"\b{value}\b", TEXT)]


def test_the_spans_of_the_picture_are_told() -> None:
    drawn = set(re.findall(r">([A-Z]\w+) (?:orders|mails)<", PICTURE))
    assert {"Put", "Wait", "Consume", "Work", "Ack"} == drawn
    assert not [span for span in drawn if f"`{span} QUEUE`" not in TEXT]
