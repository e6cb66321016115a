"""The objects of every set of values."""

from __future__ import annotations

import pytest

from deploy.charts import CASES, Object, rendered


@pytest.fixture(scope="module", params=CASES)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return rendered(request.param)
