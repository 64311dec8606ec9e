"""Middleware that checks keys, limits and bodies, and cancels the work of clients that have gone."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from embrew.serving.errors import SHOWN, ApiError
from embrew.serving.service import Service

logger = logging.getLogger(__name__)
OPEN = ("/", "/health")  # paths that need no key: the page, which holds no data, and probes
QUEUED = ("/v1/embeddings", "/embed", "/embed_all", "/similarity")  # paths whose texts wait to be computed
PATHS = frozenset((*OPEN, *QUEUED, "/tokenize", "/metrics", "/info", "/openapi.json", "/v1/models"))
PORT = re.compile(r":\d*$")
REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
GONE = 499  # the status in logs and metrics of a request whose client has gone


class Guard:
    """ASGI middleware around the routes.

    Args:
        app: the routes.
        service: what they serve.
        hosts: names in the header `Host`, without a port; none: any.
        request_id: whether answers get the header `x-request-id`, which Ray Serve adds itself.
    """

    def __init__(self, app: ASGIApp, service: Service, hosts: Collection[str], request_id: bool) -> None:
        self.app, self.service, self.settings, self.hosts = app, service, service.settings, hosts
        self.request_id = request_id
        self.keys = [hashlib.sha256(key.encode()).digest() for key in service.keys]
        self.running = self.bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer with an error; count and log it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.monotonic()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        own_id = headers.get("x-request-id", "")
        path = scope["path"].removeprefix(scope.get("root_path", ""))  # of an application under a prefix
        facts: dict[str, Any] = {
            "id": own_id if REQUEST_ID.fullmatch(own_id) else uuid.uuid4().hex,
            "path": path if path in PATHS else "other",
            "status": GONE,
        }
        scope["facts"] = facts

        async def send_timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                facts["status"] = message["status"]
                total = f"{1000 * (time.monotonic() - begun):.1f}"
                identity = [(b"x-request-id", facts["id"].encode())] if self.request_id else []
                extra = [*identity, (b"x-total-time", total.encode())]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        async def refuse(error: ApiError) -> None:
            if facts["status"] == GONE:
                await error.response({"connection": "close"})(scope, receive, send_timed)

        try:
            self._check_host(headers.get("host", ""))
            if path not in OPEN:
                self._check_key(headers.get("authorization", ""))
            await self._answer(scope, headers, receive, send_timed)
        except ApiError as error:
            await refuse(error)
        except ConnectionResetError:
            pass
        except asyncio.CancelledError:
            if self.service.state != "draining":
                raise  # by Ray Serve: the client has gone
            await refuse(self.service.refusal())  # by uvicorn: the server has waited long enough
        except Exception:
            logger.exception("request %s failed", facts["id"])
            await refuse(ApiError(500, "an error of the server; its log has the details"))
        finally:
            self.service.metrics.request({**facts, "seconds": round(time.monotonic() - begun, 6)})

    def _check_host(self, host: str) -> None:
        """Raise where a page in a browser on this machine reaches the server by another name (DNS rebinding)."""
        if self.hosts and host and PORT.sub("", host.lower()) not in self.hosts:
            names = ", ".join(sorted(self.hosts))
            message = f"the header Host is {host[:SHOWN]}; this server answers to {names}: use one of these, or start "
            raise ApiError(421, f"{message}it with an API key, with which any name is allowed", code="unknown_host")

    def _check_key(self, authorization: str) -> None:
        """Raise unless the request has one of the keys; all are compared, in constant time."""
        kind, _, key = authorization.partition(" ")
        digest = hashlib.sha256(key.strip().encode("latin-1")).digest()
        equal = [hmac.compare_digest(digest, right) for right in self.keys]
        if self.keys and not (any(equal) and kind.lower() == "bearer"):
            message = "no valid API key; send one in the header Authorization: Bearer KEY"
            raise ApiError(401, message, code="invalid_api_key")

    async def _answer(self, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        """Read the body, within the limits, and have the request answered; cancel that when its client goes."""
        if scope["method"] in ("GET", "HEAD"):  # uvicorn leaves out the body of an answer to HEAD
            await self.app({**scope, "method": "GET"}, receive, send)
            return
        if self.running >= self.settings.concurrent:
            raise self._too_busy(
                f"{self.running} requests are being answered, which is the limit", code="too_many_requests"
            )
        if scope["facts"]["path"] in QUEUED:
            self.service.queue.check_not_full()
        self.running += 1
        body = bytearray()
        try:
            async for chunk in self._chunks(headers, receive):
                body += chunk
                self.bytes += len(chunk)
                if self.bytes > self.settings.bodies_bytes:
                    raise self._too_busy("the bodies of requests fill the memory for them", code="too_many_bytes")
            await _until_gone(self.app, scope, bytes(body), receive, send)
        finally:
            self.running -= 1
            self.bytes -= len(body)

    async def _chunks(self, headers: Mapping[str, str], receive: Receive) -> AsyncIterator[bytes]:
        """Yield the parts of a body.

        Raises:
            ApiError: 413: too large; 408: too slow.
            ConnectionResetError: the client has gone.
        """
        most, seconds = self.settings.body_bytes, self.settings.body_timeout
        message = f"the body is larger than {most} bytes; send fewer texts per request"
        too_large = ApiError(413, message, code="body_too_large")
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > most:
            raise too_large
        size, more, ends = 0, True, time.monotonic() + seconds
        while more:
            try:
                part = await asyncio.wait_for(receive(), max(0.0, ends - time.monotonic()))
            except TimeoutError:
                message = f"the body was not received within {seconds:g} seconds"
                raise ApiError(408, message, code="body_timeout") from None
            if part["type"] == "http.disconnect":
                raise ConnectionResetError
            size += len(part.get("body", b""))
            if size > most:
                raise too_large
            yield part.get("body", b"")
            more = part.get("more_body", False)

    def _too_busy(self, message: str, *, code: str) -> ApiError:
        retry_after = self.service.queue.expected_seconds()
        return ApiError(429, f"{message}; try again later", code=code, retry_after=retry_after)


async def _until_gone(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
    """Answer a request whose body was read; cancel the work, and raise `ConnectionResetError`, when its client goes."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def read_body() -> Message:
        return messages.pop() if messages else await receive()

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    work = asyncio.ensure_future(app(scope, read_body, send))
    gone = asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
        await work
    except asyncio.CancelledError:
        work.cancel()
        if not gone.done():
            raise  # the server itself is being stopped
        raise ConnectionResetError from None
    finally:
        gone.cancel()
