"""OpenAI's API: `/v1/embeddings` and `/v1/models`."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from embrew.serving.answers import EmbeddingsAnswer, Model, Models
from embrew.serving.errors import SHOWN, ApiError, responses
from embrew.serving.results import openai_json
from embrew.serving.routes.embedding import ERRORS, json_response, service_of, vectors_of
from embrew.serving.wire import EmbeddingsRequest

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/embeddings", response_model=EmbeddingsAnswer, responses=ERRORS)
async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
    """Return the vectors of texts."""
    names = service_of(request).settings.names
    if body.model is not None and body.model not in names:
        raise ApiError(
            404, f"model={body.model[:SHOWN]!r}; this server has {names[0]}", param="model", code="model_not_found"
        )
    base64 = body.encoding_format == "base64"
    if base64 and body.precision != "float32":  # OpenAI's client, which asks for base64, would read codes as float32
        raise ApiError(
            400,
            f"encoding_format=base64 holds float32 numbers, and precision={body.precision}; set encoding_format to "
            "float",
            param="encoding_format",
        )
    vectors, computed = await vectors_of(request, body.input, body)
    content = openai_json(vectors, base64=base64, model=names[0], tokens=computed.tokens)
    return json_response(content, computed.headers)


@router.get("/v1/models", responses=responses(401))
async def models(request: Request) -> Models:
    """Return the served model."""
    service = service_of(request)
    return Models(data=[Model(id=service.settings.names[0], created=service.created)])
