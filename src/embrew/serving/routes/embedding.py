"""What the routes share: from a checked request to results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from fastapi import Request, Response

from embrew.serving.asked import Asked, Side
from embrew.serving.errors import responses
from embrew.serving.results import check_options, finished
from embrew.serving.service import Service
from embrew.serving.tickets import Computed
from embrew.serving.wire import Options, Text

ERRORS = responses(400, 401, 404, 405, 408, 413, 422, 429, 503)


class Reads(Protocol):
    """The fields of a request that say how its texts are read."""

    input_type: Side | None
    prompt_name: str | None
    prompt: str | None


def service_of(request: Request) -> Service:
    """Return the service of the application."""
    found: Service = request.app.state.service
    return found


def asked_of(body: Reads, service: Service, *, states: bool = False) -> Asked:
    """Return how a request's texts are to be read."""
    truncate = getattr(body, "truncate", None)
    return Asked(
        side=body.input_type,
        prompt_name=body.prompt_name,
        prompt=body.prompt,
        truncate=service.settings.auto_truncate if truncate is None else truncate,
        num_layers=getattr(body, "num_layers", None),
        states=states,
    )


async def vectors_of(request: Request, texts: list[Text], options: Options) -> tuple[np.ndarray, Computed]:
    """Return the vectors of texts `(texts, dimensions)` as the request wants them, and what was computed."""
    service = service_of(request)
    about, ranges = service.ready(), service.settings.ranges
    check_options(options, about, service.settings)
    computed = await service.compute(texts, asked_of(options, service))
    note(request, texts, options, computed)
    return finished(computed.results, options, about, ranges), computed


def note(request: Request, texts: list[Text], options: Any, computed: Computed) -> None:
    """Add facts about a request to its log line."""
    facts: dict[str, Any] = request.scope["facts"]
    facts |= {"texts": len(texts), "tokens": computed.tokens}
    for name in ("input_type", "prompt_name", "dimensions", "num_layers", "precision"):
        value = getattr(options, name, None)
        if value is not None:
            facts[name] = value


def json_response(content: bytes, headers: Mapping[str, str]) -> Response:
    """Return JSON that is encoded already."""
    return Response(content, media_type="application/json", headers=dict(headers))
