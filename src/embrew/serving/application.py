"""The ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from embrew.serving.errors import ApiError
from embrew.serving.guard import Guard
from embrew.serving.routes import openai, status, tei
from embrew.serving.service import Service


def create_app(service: Service) -> FastAPI:
    """Return the application of a service, which the caller loads; it is closed with the application."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

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
    for module in (openai, tei, status):
        app.include_router(module.router)
    app.add_middleware(Guard, service=service)
    app.add_exception_handler(ApiError, _refused)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _http_error)  # type: ignore[arg-type]
    return app


async def _refused(_: Request, error: ApiError) -> Response:
    return error.response()


async def _invalid(_: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    said = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{where}: {said}" if where else said, param=where or None).response()


async def _http_error(_: Request, error: HTTPException) -> Response:
    return ApiError(error.status_code, str(error.detail)).response(dict(error.headers or {}))
