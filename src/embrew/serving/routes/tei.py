"""The API of Text Embeddings Inference."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from fastapi import APIRouter, Request, Response
from torch import nn

from embrew.serving.answers import Token
from embrew.serving.asked import Reader
from embrew.serving.results import as_json
from embrew.serving.routes.embedding import ERRORS, asked_of, json_response, note, service_of, vectors_of
from embrew.serving.wire import (
    EmbedAllRequest,
    SimilarityParameters,
    SimilarityRequest,
    TeiRequest,
    Text,
    TokenizeRequest,
)

router = APIRouter(tags=["Text Embeddings Inference"])


@router.post("/embed", response_model=list[list[float]], responses=ERRORS)
async def embed(body: TeiRequest, request: Request) -> Response:
    """Return the vectors of texts."""
    vectors, computed = await vectors_of(request, body.inputs, body)
    return json_response(as_json(vectors), computed.headers)


@router.post("/embed_all", response_model=list[list[list[float]]], responses=ERRORS)
async def embed_all(body: EmbedAllRequest, request: Request) -> Response:
    """Return the final state of every token that the model reads, those of the template and prompt included."""
    service = service_of(request)
    computed = await service.compute(body.inputs, asked_of(body, service, states=True))
    note(request, body.inputs, body, computed)
    return json_response(as_json(list(computed.results)), computed.headers)


@router.post("/similarity", response_model=list[float], responses=ERRORS)
async def similarity(body: SimilarityRequest, request: Request) -> Response:
    """Return the cosine of the first text and each of the others."""
    options = body.parameters or SimilarityParameters()
    texts: list[Any] = [body.inputs.source_sentence, *body.inputs.sentences]
    vectors, computed = await vectors_of(request, texts, options)
    unit = nn.functional.normalize(torch.from_numpy(vectors), dim=-1)
    return json_response(as_json((unit[1:] @ unit[0]).numpy()), computed.headers)


@router.post("/tokenize", response_model=list[list[Token]], responses=ERRORS)
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """Return the tokens of texts as the model reads them."""
    service = service_of(request)
    asked = asked_of(body, service)
    service.check_size(body.inputs, asked)

    def tokens(reader: Reader, text: Text) -> bytes:
        return as_json(reader.tokenize(text, asked, add_special_tokens=body.add_special_tokens))

    found = [await service.in_pool(partial(tokens, text=text)) for text in body.inputs]
    return json_response(b"[" + b",".join(found) + b"]", {})
