"""Requests that schemathesis makes of the server's OpenAPI document: no 500, and every answer as it is documented."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.serving.encoders import made, serving_copy
from tests.serving.test_refusals import ROUTES

KEY = "the-key"
PLAIN = settings(
    max_examples=3,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def address(make_encoder) -> Iterator[str]:
    with serving_copy(made(make_encoder, "last"), keys=(KEY,)) as found:
        yield found


def test_answers_are_as_documented(address):
    """What the schema allows may still be refused: ids, layers and dimensions that the model does not have."""
    schemathesis = pytest.importorskip("schemathesis")
    headers = {"Authorization": f"Bearer {KEY}"}
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json", headers=headers)
    allowed = schemathesis.checks.CHECKS.get_by_names(["positive_data_acceptance"])
    tested = []
    for found in schema.get_all_operations():
        operation = found.ok()

        @PLAIN
        @given(case=operation.as_strategy())
        def answered(case: Any) -> None:
            tested.append(case.path)
            case.call_and_validate(headers=headers, excluded_checks=allowed)

        answered()
    resident = {"/v1/chat/completions", "/v1/encoders/load", "/v1/encoders/unload"}  # which this server refuses
    assert resident | {*ROUTES, "/health", "/info", "/metrics", "/v1/models"} == set(tested)


def test_keys_are_documented_where_they_are_needed(address):
    paths = httpx.get(f"{address}/openapi.json", headers={"Authorization": f"Bearer {KEY}"}).json()["paths"]
    for path, methods in paths.items():
        (operation,) = methods.values()
        assert ("security" in operation) == ("401" in operation["responses"]) == (path != "/health"), path
