"""Requests that schemathesis makes of the server's OpenAPI document: no 500, and every answer as it is documented."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from embrew.encoder import Encoder
from tests.serving.encoders import made, serving_copy
from tests.serving.test_refusals import ROUTES

KEY = "the-key"
PLAIN = settings(
    max_examples=6,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def address(make_encoder: Callable[..., Encoder]) -> Iterator[str]:
    with serving_copy(made(make_encoder, "last"), keys=(KEY,)) as found:
        yield found


def test_answers_are_as_documented(address: str) -> None:
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
    assert {*ROUTES, "/health", "/info", "/metrics", "/v1/models"} == set(tested)


def test_keys_are_documented_where_they_are_needed(address: str) -> None:
    paths = httpx.get(f"{address}/openapi.json", headers={"Authorization": f"Bearer {KEY}"}).json()["paths"]
    for path, methods in paths.items():
        (operation,) = methods.values()
        assert ("security" in operation) == ("401" in operation["responses"]) == (path != "/health"), path


@pytest.mark.slow
def test_many_more(address: str, tmp_path: Path) -> None:
    """All phases and checks of the command: boundary values, random fields, other methods and types, missing keys."""
    command = which("st")
    if command is None:
        pytest.skip("the command st of schemathesis is not on the path")
    arguments = ["--phases", "coverage,fuzzing,stateful", "--checks", "all", "--exclude-checks"]
    arguments += ["positive_data_acceptance", "-n", "40", "--seed", "1", "-H", f"Authorization: Bearer {KEY}"]
    done = subprocess.run(
        [command, "run", f"{address}/openapi.json", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stdout[-6000:]
    generated = re.search(r"(\d+) generated", done.stdout)
    assert generated is not None and int(generated[1]) > 300, done.stdout[-2000:]
