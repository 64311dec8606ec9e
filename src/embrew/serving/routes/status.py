"""Routes about the server: its state, its metrics and its page."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from embrew.serving.errors import responses
from embrew.serving.page import page
from embrew.serving.routes.embedding import service_of

router = APIRouter(tags=["status"])
public = APIRouter(tags=["status"])  # what needs no API key


@public.get("/health", responses=responses(503))
async def health(request: Request) -> dict[str, str]:
    """Return 200 if the server computes vectors, else 503."""
    service_of(request).ready()
    return {"status": "ready"}


@router.get("/info", responses=responses(401, 503))
async def info(request: Request) -> dict[str, Any]:
    """Return the model and the server's limits; names as in Text Embeddings Inference, where it has them."""
    service = service_of(request)
    about, limits = service.ready(), service.limits
    return {
        "model_id": service.settings.names[0],
        **about,
        "max_input_length": about["max_length"]["other"],
        "max_batch_tokens": service.batch_tokens,
        "max_client_batch_size": limits.items,
        "max_text_characters": service.characters,
        "max_concurrent_requests": limits.concurrent,
        "max_queued_tokens": service.queue.most,
        "payload_limit": limits.body_bytes,
        "auto_truncate": service.settings.auto_truncate,
        "tokenization_workers": service.settings.tokenizers,
        "workers": service.settings.workers,
        "int8_dimensions": None if service.settings.ranges is None else len(service.settings.ranges.minimum),
        "server": "embrew",
        "version": request.app.version,
    }


@router.get("/metrics", responses=responses(401), response_class=Response)
async def metrics(request: Request) -> Response:
    """Return metrics for Prometheus."""
    return Response(service_of(request).metrics.shown(), media_type=CONTENT_TYPE_LATEST)


@public.get("/", include_in_schema=False)
async def root() -> Response:
    """Return the page."""
    body, headers = page()
    return Response(body, media_type="text/html; charset=utf-8", headers=headers)
