"""The application: the routes of OpenAI's API and of Text Embeddings Inference, the server's state, and its page."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
import uuid
from base64 import b64encode
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import cache
from importlib import resources
from importlib.metadata import version
from operator import methodcaller
from typing import Annotated, Any, Literal

import numpy as np
import orjson
import torch
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from torch import nn

from embrew.chat import Answer
from embrew.corpus.job import Ranges, quantize
from embrew.files.names import is_safe_name
from embrew.serving import schemas
from embrew.serving.chat import completion, events
from embrew.serving.errors import EXCERPT, ApiError, ErrorBody, add_handlers
from embrew.serving.guard import Guard
from embrew.serving.metrics import Facts
from embrew.serving.models import Description, ReadOptions
from embrew.serving.service import Computed, Service


def create_app(service: Service, *, hosts: Collection[str] = (), request_id: bool = True) -> FastAPI:
    """Return the application of a service, which computes while the application runs.

    Args:
        service: service that it runs.
        hosts: names in the header `Host`, without a port; none: any.
        request_id: whether answers get the header `x-request-id`.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(service.run())
        yield
        service.close()
        task.cancel()

    app = FastAPI(
        title="embrew",
        version=version("embrew"),
        description="Text embeddings.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.service = service
    app.include_router(keyed, dependencies=[Depends(HTTPBearer(auto_error=False))] if service.keys else [])
    app.include_router(public)
    app.add_middleware(Guard, service=service, hosts=hosts, request_id=request_id)
    add_handlers(app)
    return app


async def _service(request: Request) -> Service:  # else each request would wait for a thread of the pool
    return request.app.state.service


Served = Annotated[Service, Depends(_service)]
UNAVAILABLE: dict[int | str, dict[str, Any]] = {503: {"model": ErrorBody}}
ERRORS = UNAVAILABLE | {status: {"model": ErrorBody} for status in (400, 404, 405, 408, 413, 422, 429)}
keyed = APIRouter(responses={401: {"model": ErrorBody}})  # `Guard` checks the key
public = APIRouter()


@keyed.post("/v1/embeddings", response_model=schemas.EmbeddingsAnswer, responses=ERRORS)
async def embeddings(body: schemas.EmbeddingsRequest, request: Request, service: Served) -> Response:
    """Return the vectors of texts."""
    as_base64 = body.encoding_format == "base64"
    if as_base64 and body.precision != "float32":  # OpenAI's client, which asks for base64, would read codes as float32
        message = f"encoding_format=base64 holds float32 numbers, and precision={body.precision}"
        raise ApiError(400, f"{message}; set encoding_format to float", param="encoding_format")
    vectors, computed = await _vectors(request, service, body.input, body)
    name = service.settings.names[0] if service.resident is None or body.model is None else body.model
    return _json(_openai_json(vectors, base64=as_base64, model=name, tokens=computed.tokens), computed)


@keyed.post("/v1/chat/completions", response_model=dict[str, Any], responses=ERRORS)
async def chat_completions(body: schemas.ChatRequest, request: Request, service: Served) -> Response:
    """Return the language model's next message, at once or as server-sent events."""
    service.check_ready()
    chats, names = service.chats, service.settings.names
    if chats is None:
        message = "this server does not chat; start it with a language model and --chat"
        raise ApiError(400, message, code="not_offered")
    if body.model is not None and body.model not in names:
        message = f"model={body.model[:EXCERPT]!r}; the language model of this server is {names[0]}"
        raise ApiError(404, message, param="model", code="model_not_found")
    service.check_size([message.text for message in body.messages], ReadOptions(), param="messages")
    ids = await service.tokenize(methodcaller("read", body), chats)
    head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": names[0]}
    parts = service.counted(chats.answer(ids, chats.sampling(body)), request.scope["facts"])
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return StreamingResponse(events(parts, head, include_usage=usage), media_type="text/event-stream")
    async with aclosing(parts):
        *_, answer = [part async for part in parts]
    assert isinstance(answer, Answer)
    return _json(completion(answer, head))


@keyed.post("/v1/encoders/load", responses=ERRORS)
async def load_encoder(body: schemas.EncoderFolder, service: Served) -> schemas.Models:
    """Load an encoder of the language model; return the served models."""
    folder = service.settings.encoder_folder
    _check_changes(service)
    if folder is None:
        message = "encoders cannot be loaded by requests; start the server with --encoder-folder DIR"
        raise ApiError(400, message, code="not_offered")
    name = body.folder or body.name
    if not is_safe_name(name):
        message = f"folder={name[:EXCERPT]!r} is no name within the folder of encoders; give a relative path"
        raise ApiError(400, message, param="folder")
    await service.load_encoder(body.name, folder / name)
    return await models(service)


@keyed.post("/v1/encoders/unload", responses=ERRORS)
async def unload_encoder(body: schemas.EncoderName, service: Served) -> schemas.Models:
    """Unload an encoder; return the served models."""
    _check_changes(service)
    await service.unload_encoder(body.name)
    return await models(service)


@keyed.get("/v1/models")
async def models(service: Served) -> schemas.Models:
    """Return the served models."""
    chats = service.settings.names[0] if service.chats else None
    kinds: dict[str, Literal["embedding", "chat"]] = {n: "chat" if n == chats else "embedding" for n in service.names}
    return schemas.Models(
        data=[schemas.Model(id=name, created=service.created, type=kind) for name, kind in kinds.items()]
    )


@keyed.post("/embed", response_model=list[list[float]], responses=ERRORS)
async def embed(body: schemas.TeiRequest, request: Request, service: Served) -> Response:
    """Return the vectors of texts."""
    vectors, computed = await _vectors(request, service, body.inputs, body)
    return _json(_as_json(vectors), computed)


@keyed.post("/embed_all", response_model=list[list[list[float]]], responses=ERRORS)
async def embed_all(body: schemas.EmbedAllRequest, request: Request, service: Served) -> Response:
    """Return the final state of every token that the model reads, those of the template and prompt included."""
    computed = await _compute(request, service, body.inputs, body, states=True)
    return _json(_as_json(list(computed.results)), computed)


@keyed.post("/similarity", response_model=list[float], responses=ERRORS)
async def similarity(body: schemas.SimilarityRequest, request: Request, service: Served) -> Response:
    """Return the cosine of the first text and each of the others."""
    options = body.parameters or schemas.SimilarityParameters()
    texts: list[schemas.Text] = [body.inputs.source_sentence, *body.inputs.sentences]
    vectors, computed = await _vectors(request, service, texts, options)
    unit = nn.functional.normalize(torch.from_numpy(vectors), dim=-1)
    return _json(_as_json((unit[1:] @ unit[0]).numpy()), computed)


@keyed.post("/tokenize", response_model=list[list[schemas.Token]], responses=ERRORS)
async def tokenize(body: schemas.TokenizeRequest, service: Served) -> Response:
    """Return the tokens of texts as the model reads them."""
    options = _read_options(body, service)
    service.check_size(body.inputs, options)
    calls = [methodcaller("tokenize", text, options, special=body.add_special_tokens) for text in body.inputs]
    model = await service.available(body.model)
    return _json(_as_json([await service.tokenize(call, model) for call in calls]))


@public.get("/health", responses=UNAVAILABLE)
async def health(service: Served) -> dict[str, str]:
    """Return 200 if the server computes vectors, else 503."""
    service.check_ready()
    return {"status": "ready"}


@keyed.get("/info", responses=UNAVAILABLE)
async def info(service: Served, request: Request, model: str | None = None) -> dict[str, Any]:
    """Return a model and the limits of this process; names as in Text Embeddings Inference, where it has them."""
    about, settings = (await service.available(model)).about, service.settings
    limits = ("max_client_batch_size", "max_concurrent_requests", "payload_limit", "auto_truncate")
    return {
        "model_id": settings.names[0] if service.resident is None or model is None else model,
        **about,
        **{name: getattr(settings, name) for name in limits},
        "max_input_length": about["max_length"]["other"],
        "max_batch_tokens": service.queue.batch_tokens,
        "max_text_characters": service.characters,
        "max_queued_tokens": service.queue.max_tokens,
        "int8_dimensions": None if service.ranges is None else len(service.ranges.minimum),
        "server": "embrew",
        "version": request.app.version,
    }


@keyed.get("/metrics", response_class=Response)
async def metrics(service: Served) -> Response:
    """Return metrics for Prometheus."""
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


@public.get("/", include_in_schema=False)
async def root() -> Response:
    """Return the page."""
    body, policy = _page()
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return Response(body, media_type="text/html; charset=utf-8", headers=headers)


@cache
def _page() -> tuple[bytes, str]:
    """Return the page and its Content-Security-Policy.

    It allows the page's own script and style, by their hashes, and requests to the server that it came from; no other
    script, no other host, no form submission, no frame around it, and no text read as HTML.
    """
    body = resources.files("embrew.serving").joinpath("page/index.html").read_bytes()
    hashes = {}
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), body, flags=re.DOTALL)
        hashes[tag] = f"'sha256-{b64encode(hashlib.sha256(content).digest()).decode()}'"
    policy = (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return body, policy


def _check_changes(service: Service) -> None:
    if service.load_missing is not None:
        message = "Ray Serve loads and unloads encoders, as requests name them"
        raise ApiError(400, message, code="not_offered")


def _read_options(body: schemas.Reading, service: Service, *, states: bool = False) -> ReadOptions:
    truncate = getattr(body, "truncate", None)
    return ReadOptions(
        side=body.input_type,
        prompt_name=body.prompt_name,
        prompt=body.prompt,
        model=body.model,
        truncate=service.settings.auto_truncate if truncate is None else truncate,
        num_layers=getattr(body, "num_layers", None),
        states=states,
    )


async def _vectors(
    request: Request, service: Service, texts: list[schemas.Text], options: schemas.Options
) -> tuple[np.ndarray, Computed]:
    """Return the vectors of texts `(texts, dimensions)` as the request wants them, and what was computed."""
    about = (await service.available(options.model)).about
    _check_options(options, about, service.ranges, service.ranges_of)
    computed = await _compute(request, service, texts, options)
    return _finish(computed.results, options, about, service.ranges), computed


async def _compute(
    request: Request, service: Service, texts: list[schemas.Text], options: schemas.Reading, *, states: bool = False
) -> Computed:
    """Have texts computed, and add facts about the request to its log line."""
    computed = await service.compute(texts, _read_options(options, service, states=states))
    facts: Facts = request.scope["facts"]
    facts |= {"texts": len(texts), "tokens": computed.tokens}
    for name in ("input_type", "prompt_name", "dimensions", "num_layers", "precision"):
        value = getattr(options, name, None)
        if value is not None:
            facts[name] = value
    return computed


def _json(content: bytes, computed: Computed | None = None) -> Response:
    return Response(content, media_type="application/json", headers=None if computed is None else computed.headers)


def _check_options(
    options: schemas.Options, about: Description, ranges: Ranges | None, ranges_of: Mapping[str, Any] | None
) -> None:
    """Raise unless the model offers these dimensions, this precision and this normalisation.

    Args:
        options: of a request.
        about: description of the model.
        ranges: of int8 codes; None: the server has none.
        ranges_of: what the vectors with these ranges were computed with; None: unknown.
    """
    width, layers = about["dimensions"], about["num_layers"]
    if options.dimensions is not None and options.dimensions > width:
        raise ApiError(400, f"dimensions={options.dimensions}; this model has {width} dimensions", param="dimensions")
    if options.normalize is False and about["always_normalizes"]:
        raise ApiError(400, "normalize=false: this model's vectors always have unit length", param="normalize")
    if options.precision != "int8":
        return
    if ranges is None:
        message = "precision=int8: the server has no ranges for codes; start it with --int8-ranges, or ask for "
        raise ApiError(400, f"{message}float32 or binary", param="precision")
    required: dict[str, tuple[int | None, int | None]] = {
        "dimensions": (options.dimensions or width, len(ranges.minimum))
    }
    if ranges_of is not None:
        unit = about["normalize"] or about["always_normalizes"]
        required["normalize"] = (unit if options.normalize is None else options.normalize, unit)
        required["num_layers"] = (options.num_layers or layers, ranges_of["num_layers"] or layers)
    for name, (value, of_ranges) in required.items():
        if value != of_ranges:
            message = (
                f"precision=int8: the server's ranges are of vectors with {name}={json.dumps(of_ranges)}; ask for these"
            )
            raise ApiError(400, message, param=name)


def _finish(
    raw: Sequence[np.ndarray], options: schemas.Options, about: Description, ranges: Ranges | None
) -> np.ndarray:
    """Return the vectors `(texts, dimensions)` of a request, as `Encoder.encode` finishes them.

    Args:
        raw: per text, float32 `(templates, dimensions)`.
        options: of the request.
        about: description of the model.
        ranges: of int8 codes.
    """
    parts = torch.from_numpy(np.stack(raw))[:, :, : options.dimensions]
    vectors = parts[:, 0] if parts.shape[1] == 1 else parts.mean(1)
    if about["normalize"] if options.normalize is None else options.normalize:
        vectors = nn.functional.normalize(vectors, dim=-1)
    if options.precision == "int8":
        return quantize(vectors.numpy(), "int8", ranges)[0]
    if options.precision == "float32":
        return np.ascontiguousarray(vectors.numpy())
    bits = quantize(vectors.numpy(), "binary")[0]
    return bits if options.precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)


def _openai_json(vectors: np.ndarray, *, base64: bool, model: str, tokens: int) -> bytes:
    """Return OpenAI's answer as JSON; float32 has as many digits as it takes to read the same number again."""
    rows: np.ndarray | list[str] = vectors
    if base64:
        rows = [b64encode(vector.astype("<f4", copy=False).tobytes()).decode("ascii") for vector in vectors]
    data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return _as_json({"object": "list", "data": data, "model": model, "usage": usage})


def _as_json(value: Any) -> bytes:
    """Return JSON of Python values and arrays."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
