"""The ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer

from embrew.serving.guard import Guard
from embrew.serving.refusals import add_handlers
from embrew.serving.routes import openai, status, tei
from embrew.serving.service import Service


def create_app(service: Service, *, hosts: Collection[str] = ()) -> FastAPI:
    """Return the application of a service, which the caller loads; it is closed with the application.

    Args:
        service: what it serves.
        hosts: names in the header `Host`, without a port; none: any.
    """

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
    key = [Depends(HTTPBearer(auto_error=False))] if service.settings.keys else []  # for OpenAPI; `Guard` checks it
    for module in (openai, tei, status):
        app.include_router(module.router, dependencies=key)
    app.include_router(status.public)
    app.add_middleware(Guard, service=service, hosts=hosts)
    add_handlers(app)
    return app
