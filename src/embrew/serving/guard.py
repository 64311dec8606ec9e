"""Middleware that checks keys, limits and bodies, and cancels the work of clients that have gone."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Collection, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from embrew.serving.errors import SHOWN, ApiError, stopping
from embrew.serving.service import Service

logger = logging.getLogger(__name__)
OPEN = ("/", "/health")  # paths that need no key: the page, which holds no data, and probes
QUEUED = ("/v1/embeddings", "/embed", "/embed_all", "/similarity")  # paths whose texts wait to be computed
PATHS = frozenset((*OPEN, *QUEUED, "/tokenize", "/metrics", "/info", "/openapi.json", "/v1/models"))
PORT = re.compile(r":\d*$")
GONE = 499  # the status in logs and metrics of a request whose client has gone


class Guard:
    """ASGI middleware around the routes.

    Args:
        app: the routes.
        service: what they serve.
        hosts: names in the header `Host`, without a port; none: any.
    """

    def __init__(self, app: ASGIApp, service: Service, hosts: Collection[str] = ()) -> None:
        self.app, self.service, self.limits, self.hosts = app, service, service.limits, hosts
        self.keys = [hashlib.sha256(key.encode()).digest() for key in service.settings.keys]
        self.running = self.bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer with an error; count and log it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.monotonic()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        path = scope["path"].removeprefix(scope.get("root_path", ""))  # of an application under a prefix
        facts: dict[str, Any] = {
            "id": _request_id(headers),
            "path": path if path in PATHS else "other",
            "status": GONE,
        }
        scope["facts"] = facts

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                facts["status"] = message["status"]
                total = f"{1000 * (time.monotonic() - begun):.1f}"
                added = [(b"x-request-id", facts["id"].encode()), (b"x-total-time", total.encode())]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        try:
            self._check_host(headers.get("host", ""))
            if path not in OPEN:
                self._check_key(headers.get("authorization", ""))
            await self._guarded(scope, headers, receive, sending)
        except ApiError as error:
            await error.response({"connection": "close"})(scope, receive, sending)
        except ConnectionResetError:
            pass
        except asyncio.CancelledError:
            if self.service.state != "draining":
                raise  # by Ray Serve: the client has gone
            if facts["status"] == GONE:  # by uvicorn: the server has waited long enough
                await stopping().response({"connection": "close"})(scope, receive, sending)
        except Exception:
            logger.exception("request %s failed", facts["id"])
            if facts["status"] == GONE:
                await ApiError(500, "an error of the server; its log has the details").response()(
                    scope, receive, sending
                )
        finally:
            self.service.metrics.request({**facts, "seconds": round(time.monotonic() - begun, 6)})

    async def _guarded(self, scope: Scope, headers: MutableMapping[str, str], receive: Receive, send: Send) -> None:
        if scope["method"] in ("GET", "HEAD"):  # uvicorn leaves out the body of an answer to HEAD
            await self.app({**scope, "method": "GET"}, receive, send)
            return
        if self.running >= self.limits.concurrent:
            raise ApiError(
                429,
                f"{self.running} requests are being answered, which is the limit; try again later",
                code="too_many_requests",
                retry_after=self.service.queue.expected(),
            )
        if scope["facts"]["path"] in QUEUED:
            self.service.queue.check_not_full()
        self.running += 1
        held = 0
        try:
            body = bytearray()
            async for chunk in self._chunks(headers, receive):
                body += chunk
                held += len(chunk)
                self.bytes += len(chunk)
                if self.bytes > self.limits.bodies_bytes:
                    raise ApiError(
                        429,
                        "the bodies of requests fill the memory for them; try again later",
                        code="too_many_bytes",
                        retry_after=self.service.queue.expected(),
                    )
            messages: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]
            body.clear()
            await self._until_gone(self.app(scope, _replay(messages), send), receive)
        finally:
            self.running -= 1
            self.bytes -= held

    def _check_host(self, given: str) -> None:
        """Raise where a page in a browser on this machine reaches the server by another name (DNS rebinding)."""
        if self.hosts and given and PORT.sub("", given.lower()) not in self.hosts:
            names = ", ".join(sorted(self.hosts))
            said = f"the header Host is {given[:SHOWN]}; this server answers to {names}: use one of these, or "
            raise ApiError(421, f"{said}start it with an API key, with which any name is allowed", code="unknown_host")

    def _check_key(self, given: str) -> None:
        """Raise unless the request has one of the keys; all are compared, in constant time."""
        if not self.keys:
            return
        kind, _, key = given.partition(" ")
        digest = hashlib.sha256(key.strip().encode("latin-1")).digest()
        found = [hmac.compare_digest(digest, known) for known in self.keys]
        if kind.lower() != "bearer" or not any(found):
            raise ApiError(
                401,
                "no valid API key; send one in the header Authorization: Bearer KEY",
                code="invalid_api_key",
            )

    async def _chunks(self, headers: MutableMapping[str, str], receive: Receive) -> Any:
        """Yield the parts of a body.

        Raises:
            ApiError: 413: too large; 408: too slow.
            ConnectionResetError: the client has gone.
        """
        most, size = self.limits.body_bytes, 0
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > most:
            raise _too_large(most)
        ends = time.monotonic() + self.limits.body_timeout
        while True:
            try:
                message = await asyncio.wait_for(receive(), max(0.0, ends - time.monotonic()))
            except TimeoutError:
                raise ApiError(
                    408, f"the body was not received within {self.limits.body_timeout:g} seconds", code="body_timeout"
                ) from None
            if message["type"] == "http.disconnect":
                raise ConnectionResetError
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > most:
                raise _too_large(most)
            yield chunk
            if not message.get("more_body", False):
                return

    @staticmethod
    async def _until_gone(answering: Awaitable[None], receive: Receive) -> None:
        """Answer a request; cancel the work when its client goes."""
        work = asyncio.ensure_future(answering)
        gone = asyncio.ensure_future(_disconnected(receive))
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


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is larger than {most} bytes; send fewer texts per request", code="body_too_large")


def _request_id(headers: MutableMapping[str, str]) -> str:
    """Return the client's own id of a request, if it is short and plain, or a new one."""
    given = headers.get("x-request-id", "")
    plain = 0 < len(given) <= 64 and all(c.isascii() and (c.isalnum() or c in "-_.") for c in given)
    return given if plain else uuid.uuid4().hex


def _replay(messages: list[Message]) -> Receive:
    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # the routes read the body only; `Guard` sees the end of the connection
        raise AssertionError

    return receive
