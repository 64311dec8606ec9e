"""The server on a Ray cluster: `serve run embrew.serving.ray:app model=FOLDER`, or the YAML of `launch/ray-serve`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from pydantic import TypeAdapter, ValidationError

from embrew.extras import import_extra
from embrew.serving.routes import create_app
from embrew.serving.service import Service
from embrew.serving.settings import Settings
from embrew.settings.validation import explain

if TYPE_CHECKING:
    from ray.serve import Application

PATHS = ("api_key_file", "int8_ranges", "encoder_folder", "chat_template")
SPARE = 16  # requests of a replica beyond `max_concurrent_requests`: probes, and those that it refuses with 429


class Embeddings:
    """A replica: it opens the model, and answers every route of `embrew serve`."""

    app: FastAPI  # set by `serve.ingress`

    def check_health(self) -> None:
        """Raise if nothing can be computed any more, so that Ray starts another replica.

        Raises:
            RuntimeError: the reason.
        """
        service: Service = self.app.state.service
        if service.broken:
            raise RuntimeError(service.broken)


def app(args: dict[str, Any]) -> Application:
    """Return the application: a deployment `Embeddings`, whose number of replicas and resources are set in Ray.

    Args:
        args: fields of `Settings` by name. Values may be strings, as on the command line.

    Raises:
        ValueError: an unknown argument, or a value that does not fit.
    """
    settings = read_arguments(args)

    def open_service() -> Service:
        service = Service(settings)
        if service.folders:
            service.load_missing = _multiplexed(service)
        service.load()
        if service.failure is not None:
            raise service.failure
        return service

    return deploy(open_service, settings)


def _multiplexed(service: Service) -> Callable[[str], Awaitable[Any]]:
    """Return a function that loads an encoder in this replica, unless it is loaded, perhaps in place of another.

    Ray Serve sends requests with the header `serve_multiplexed_model_id` to replicas that have loaded the encoder.
    """
    serve = import_extra("ray.serve", "ray,serve", "a server on Ray")

    async def load(name: str) -> SimpleNamespace:
        await service.load_encoder(name, service.folders[name])
        return SimpleNamespace(__del__=partial(service.unload_encoder, name))  # awaited where another takes its place

    load_once: Callable[[str], Awaitable[Any]] = serve.multiplexed(
        max_num_models_per_replica=service.settings.max_encoders
    )(load)
    return load_once


def deploy(open_service: Callable[[], Service], settings: Settings) -> Application:
    """Return the application of a service, which every replica opens.

    Raises:
        ImportError: Ray Serve is not installed.
    """
    serve = import_extra("ray.serve", "ray,serve", "a server on Ray")

    def build() -> FastAPI:
        replica = logging.getLogger("ray.serve")
        logging.getLogger("embrew").parent = replica  # its handlers write the replica's log
        logging.getLogger("embrew").setLevel(replica.level)
        return create_app(open_service(), request_id=False)

    deployment = serve.deployment(
        serve.ingress(build)(Embeddings),
        name="Embeddings",
        max_ongoing_requests=settings.max_concurrent_requests + SPARE,
        max_queued_requests=settings.max_concurrent_requests
        + SPARE,  # also those of a burst, until Ray has assigned them; more: 503
        graceful_shutdown_timeout_s=settings.drain + 5,
        graceful_shutdown_wait_loop_s=0.5,
    )
    return deployment.bind()


def read_arguments(args: Mapping[str, Any]) -> Settings:
    """Return the settings of a replica; paths become absolute, since replicas have other working directories.

    Raises:
        ValueError: an unknown argument, or a value that does not fit.
    """
    try:
        settings = TypeAdapter(Settings).validate_python(dict(args))
    except ValidationError as error:
        raise ValueError(explain(error, Settings, args)) from None
    files = {name: getattr(settings, name) for name in PATHS}
    named = (item.partition("=") for item in settings.encoder)
    encoders = tuple(f"{name}={Path(folder).absolute()}" for name, _, folder in named)
    if Path(settings.model).exists():
        files["model"] = Path(settings.model)
    paths = {name: path.absolute() for name, path in files.items() if path is not None}
    return replace(settings, encoder=encoders, **{**paths, "model": str(paths.get("model", settings.model))})
