"""Middleware that checks keys, limits and bodies, and cancels the work of clients that have gone."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Collection
from contextlib import suppress

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from embrew.serving.errors import EXCERPT, ApiError
from embrew.serving.metrics import Facts
from embrew.serving.service import Service

logger = logging.getLogger(__name__)
OPEN = ("/", "/health")  # paths that need no key: the page, which holds no data, and probes
QUEUED = ("/v1/embeddings", "/embed", "/embed_all", "/similarity")  # paths whose texts wait to be computed
PATHS = frozenset((*OPEN, *QUEUED, "/tokenize", "/metrics", "/info", "/openapi.json", "/v1/models"))
PATHS |= {"/v1/chat/completions", "/v1/encoders/load", "/v1/encoders/unload"}
PORT = re.compile(r":\d*$")
REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
DISCARDING = 1.0  # seconds for what still comes of the body of a refused request
GONE = 499  # the status in logs and metrics of a request whose client has gone


class Guard:
    """ASGI middleware around the routes.

    Args:
        app: application of the routes.
        service: service behind them.
        hosts: names in the header `Host`, without a port; none: any.
        request_id: whether answers get the header `x-request-id`, which Ray Serve adds itself.
    """

    def __init__(self, app: ASGIApp, service: Service, hosts: Collection[str], request_id: bool) -> None:
        self.app, self.service, self.settings, self.hosts = app, service, service.settings, hosts
        self.adds_request_id = request_id
        self.keys = [hashlib.sha256(key.encode()).digest() for key in service.keys]
        self.bodies: dict[int, bytearray] = {}  # of the requests that are being answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer with an error; count and log it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.monotonic()
        headers = Headers(scope=scope)
        sent_id = headers.get("x-request-id", "")
        path = scope["path"].removeprefix(scope.get("root_path", ""))  # of an application under a prefix
        request_id = sent_id if REQUEST_ID.fullmatch(sent_id) else uuid.uuid4().hex
        facts: Facts = {
            "id": request_id,
            "path": path if path in PATHS else "other",
            "status": GONE,
        }
        scope["facts"] = facts

        async def send_timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                facts["status"] = message["status"]
                added = MutableHeaders(scope=message)
                added["x-total-time"] = f"{1000 * (time.monotonic() - begun):.1f}"
                if self.adds_request_id:
                    added["x-request-id"] = request_id
            await send(message)

        try:
            _check_length(headers)
            self._check_host(headers.get("host", ""))
            if path not in OPEN:
                self._check_key(headers.get("authorization", ""))
            await self._answer(scope, headers, receive, send_timed)
        except ApiError as error:
            await _refuse_early(error, receive, send_timed)
        except asyncio.CancelledError:
            if self.service.state != "draining" or facts["status"] != GONE:
                raise  # by Ray Serve: the client has gone
            refusal = self.service.refusal()  # by uvicorn: the server has waited long enough
            await refusal.response()(scope, receive, send_timed)
        except Exception:
            logger.exception("request %s failed", request_id)
            if facts["status"] == GONE:
                unexpected = ApiError(500, "an error of the server; its log has the details")
                await unexpected.response()(scope, receive, send_timed)
        finally:
            self.service.metrics.request(facts, round(time.monotonic() - begun, 6))

    def _check_host(self, host: str) -> None:
        """Raise where a page in a browser on this machine reaches the server by another name (DNS rebinding)."""
        if self.hosts and host and PORT.sub("", host.lower()) not in self.hosts:
            names = ", ".join(sorted(self.hosts))
            message = (
                f"the header Host is {host[:EXCERPT]}; this server answers to {names}: use one of these, or start "
            )
            raise ApiError(421, f"{message}it with an API key, with which any name is allowed", code="unknown_host")

    def _check_key(self, authorization: str) -> None:
        """Raise unless the request has one of the keys; all are compared, in constant time."""
        kind, _, key = authorization.partition(" ")
        digest = hashlib.sha256(key.strip().encode("latin-1")).digest()
        equal = [hmac.compare_digest(digest, key_digest) for key_digest in self.keys]
        if self.keys and not (any(equal) and kind.lower() == "bearer"):
            message = "no valid API key; send one in the header Authorization: Bearer KEY"
            raise ApiError(401, message, code="invalid_api_key")

    async def _answer(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        """Read the body, within the limits, and have the request answered; cancel that when its client goes."""
        if scope["method"] in ("GET", "HEAD"):  # uvicorn leaves out the body of an answer to HEAD
            await self.app({**scope, "method": "GET"}, receive, send)
            return
        if len(self.bodies) >= self.settings.max_concurrent_requests:
            reason = f"{len(self.bodies)} requests are being answered, which is the limit"
            raise self._too_busy(reason, code="too_many_requests")
        if scope["facts"]["path"] in QUEUED:
            self.service.queue.check_room(1)
        body = bytearray()
        self.bodies[id(body)] = body
        try:
            if await self._read_body(body, headers, receive):
                await _answer_unless_gone(self.app, scope, bytes(body), receive, send)
        finally:
            del self.bodies[id(body)]

    async def _read_body(self, body: bytearray, headers: Headers, receive: Receive) -> bool:
        """Read a body; return False if the client has gone.

        Raises:
            ApiError: 413: too large; 408: too slow; 429: there is no memory for it.
        """
        limit, seconds = self.settings.payload_limit, self.settings.body_timeout
        message = f"the body is larger than {limit} bytes; send fewer texts per request"
        too_large = ApiError(413, message, code="body_too_large")
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise too_large
        try:
            async with asyncio.timeout(seconds):
                more = True
                while more:
                    part = await receive()
                    if part["type"] == "http.disconnect":
                        return False
                    body += part.get("body", b"")
                    if len(body) > limit:
                        raise too_large
                    if sum(map(len, self.bodies.values())) > self.settings.bodies_bytes:
                        raise self._too_busy("the bodies of requests fill the memory for them", code="too_many_bytes")
                    more = part.get("more_body", False)
        except TimeoutError:
            message = f"the body was not received within {seconds:g} seconds"
            raise ApiError(408, message, code="body_timeout") from None
        return True

    def _too_busy(self, message: str, *, code: str) -> ApiError:
        retry_after = self.service.queue.expected_seconds()
        return ApiError(429, f"{message}; try again later", code=code, retry_after=retry_after)


def _check_length(headers: Headers) -> None:
    """Raise where a proxy and this server may read different ends of the body (request smuggling)."""
    if "content-length" in headers and "transfer-encoding" in headers:
        message = "the request has both Content-Length and Transfer-Encoding; send one of them"
        raise ApiError(400, message, code="invalid_body")


async def _refuse_early(error: ApiError, receive: Receive, send: Send) -> None:
    """Send a refusal, and then discard what still comes of the body for a while.

    To close a connection with unread data resets it, and the client may lose the answer.
    """
    response = error.response({"connection": "close"})
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARDING):
            while (await receive()).get("more_body"):
                pass
    await send({"type": "http.response.body"})


async def _answer_unless_gone(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
    """Have a request answered whose body was read; cancel that when its client goes."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def read_body() -> Message:
        return messages.pop() if messages else await receive()

    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        await app(scope, read_body, send)
        tasks.cancel_scope.cancel()
