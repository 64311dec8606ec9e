"""Exports of tiny encoders, made once, and a runtime without a fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from embrew.export.exporting import export_encoder
from tests.parity.faulty import FORMS, LIMIT, PROMPTS, THREE_PROMPTS, FaultyRuntime


@pytest.fixture(scope="session")
def exports() -> dict[str, Path]:
    """Exports by form."""
    return {}


@pytest.fixture
def exported(exports, make_encoder, tmp_path_factory) -> Callable[..., Path]:
    """An export by the name of a form."""

    def export(form: str, prompts: dict[str, str] = PROMPTS) -> Path:
        name = f"{form}-{len(prompts)}"
        if name not in exports:
            encoder = make_encoder(lora={}, max_length=LIMIT, prompts=prompts, **FORMS[form])
            exports[name] = tmp_path_factory.mktemp("exports") / name
            export_encoder(encoder, exports[name], verify="off")
        return exports[name]

    return export


@pytest.fixture
def export(exported) -> Path:
    """An export of the last token's state, with three prompts."""
    return exported("last", THREE_PROMPTS)


@pytest.fixture(scope="session")
def runtimes() -> dict[Path, FaultyRuntime]:
    """Runtimes by folder."""
    return {}


@pytest.fixture
def runtime(export, runtimes) -> FaultyRuntime:
    """The runtime of that export, without a fault."""
    return runtimes.setdefault(export, runtimes.get(export) or FaultyRuntime(export))
