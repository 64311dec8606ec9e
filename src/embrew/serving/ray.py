"""The server on a Ray cluster: `serve run embrew.serving.ray:app model=FOLDER`, or the YAML of `launch/ray-serve`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from embrew.config.validation import explain
from embrew.serving.application import create_app
from embrew.serving.service import Service
from embrew.serving.settings import Limits, Settings, read_keys, read_ranges

if TYPE_CHECKING:
    from ray.serve import Application

NOT_GIVEN = (
    "keys",
    "ranges",
    "ranges_of",
    "limits",
    "workers",
    "devices",
)  # fields of `Settings` that are no arguments
SPARE = 16  # requests of a replica beyond `limits.concurrent`: probes, and those that it refuses with 429


def _arguments() -> type[BaseModel]:
    """Return the arguments of the application: the fields of `Settings` and `Limits`, and two files."""
    found: dict[str, Any] = {"api_key_file": (Path | None, None), "int8_ranges": (Path | None, None)}
    for kind in (Settings, Limits):
        hints = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            if field.name not in NOT_GIVEN:
                found[field.name] = (hints[field.name], ... if field.default is MISSING else field.default)
    return create_model("Arguments", __config__=ConfigDict(extra="forbid"), **found)


Arguments = _arguments()


class Embeddings:
    """A replica: it opens the model, and answers every route of `embrew serve`."""

    app: FastAPI  # set by `serve.ingress`

    def check_health(self) -> None:
        """Raise if nothing can be computed any more, so that Ray starts another replica.

        Raises:
            RuntimeError: the reason.
        """
        service: Service = self.app.state.service
        if service.state == "broken":
            raise RuntimeError(service.why)


class WithoutRequestId:
    """ASGI middleware that removes `x-request-id` from answers, which Ray adds with the same value."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [header for header in message["headers"] if header[0] != b"x-request-id"]
                message = {**message, "headers": kept}
            await send(message)

        await self.app(scope, receive, sending)


def app(args: dict[str, Any]) -> Application:
    """Return the application: a deployment `Embeddings`, whose number of replicas and resources are set in Ray.

    Args:
        args: fields of `Settings` and `Limits` by name, but for `keys`, `ranges`, `workers` and `devices`;
            `api_key_file`: file with one API key per line; `int8_ranges`: folder of `embrew encode --precision int8`.
            Values may be strings, as on the command line.

    Raises:
        ValueError: an unknown argument, or a value that does not fit.
    """
    settings, key_file, folder = read_arguments(args)

    def opened() -> Service:
        ranges, ranges_of = read_ranges(folder)
        service = Service(replace(settings, keys=read_keys(key_file), ranges=ranges, ranges_of=ranges_of))
        service.load()
        if service.failure is not None:
            raise service.failure
        return service

    return deployed(opened, settings.limits)


def deployed(opened: Callable[[], Service], limits: Limits) -> Application:
    """Return the application of a service, which every replica opens.

    Raises:
        ImportError: Ray Serve is not installed.
    """
    try:
        from ray import serve
    except ImportError as error:
        raise ImportError(f'{error.name} is not installed; run: pip install "embrew[ray,serve]"') from error

    def build() -> FastAPI:
        replica = logging.getLogger("ray.serve")
        logging.getLogger("embrew").parent = replica  # its handlers write the replica's log
        logging.getLogger("embrew").setLevel(replica.level)
        found = create_app(opened())
        found.add_middleware(WithoutRequestId)
        return found

    deployment = serve.deployment(
        serve.ingress(build)(Embeddings),
        name="Embeddings",
        max_ongoing_requests=limits.concurrent + SPARE,
        max_queued_requests=limits.concurrent + SPARE,  # also those of a burst, until Ray has assigned them; more: 503
        graceful_shutdown_timeout_s=limits.drain + 5,
        graceful_shutdown_wait_loop_s=0.5,
    )
    bound: Application = deployment.bind()
    return bound


def read_arguments(args: Mapping[str, Any]) -> tuple[Settings, Path | None, Path | None]:
    """Return the settings of a replica, the file with API keys, and the folder with ranges of int8 codes.

    Paths become absolute, since replicas have other working directories.

    Raises:
        ValueError: an unknown argument, or a value that does not fit.
    """
    for name in {"workers", "devices"} & args.keys():
        raise ValueError(f"{name}: Ray starts workers; set num_replicas or autoscaling_config, and ray_actor_options")
    try:
        given = Arguments.model_validate(args).model_dump()
    except ValidationError as error:
        raise ValueError(explain(error, Arguments, args)) from None
    files = [None if file is None else file.absolute() for file in map(given.pop, ("api_key_file", "int8_ranges"))]
    limits = Limits(**{field.name: given.pop(field.name) for field in fields(Limits)})
    if Path(given["model"]).exists():
        given["model"] = str(Path(given["model"]).absolute())
    return Settings(**given, limits=limits), files[0], files[1]
