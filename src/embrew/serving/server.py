"""Run the application on uvicorn, in one process, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from embrew.serving.routes import create_app
from embrew.serving.service import Service
from embrew.serving.settings import Settings

logger = logging.getLogger(__name__)
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ANSWERING = 5  # seconds for answers on their way, and for bodies that are still received
IDLE = 75  # seconds until an idle connection is closed: longer than clients and load balancers keep theirs
HEADERS = 20.0  # seconds for a client to send the headers of a request
FILES = 128  # of those that the process may open, for others than connections, and for ACCEPTED four times
ACCEPTED = 8  # connections that asyncio accepts at a time, before the first of them is counted
WAITING = 2048  # connections that wait in the kernel until they are accepted
MINUTE = 60.0
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class MinuteLog:
    """Logs a warning, and none for a minute after it."""

    def __init__(self) -> None:
        self._until = 0.0

    def __call__(self, message: str, *arguments: int | str | None) -> None:
        """Log a message with its arguments, unless another was logged within the last minute."""
        if (now := time.monotonic()) >= self._until:
            self._until = now + MINUTE
            logger.warning(message, *arguments)


warn_seldom = MinuteLog()  # of connections: one line per minute and process


class Connection(H11Protocol):
    """uvicorn's protocol on h11, whatever other parser is installed, with two limits that uvicorn does not have.

    Args:
        seconds: seconds for the headers of a request, from the connection or from the first byte after an answer.
        max_connections: connections at one time; a further one closes the one that has waited longest for a request, or
            itself where requests are being answered on all others.
    """

    def __init__(self, *, seconds: float, max_connections: int, **options: Any) -> None:
        super().__init__(**options)
        self.seconds, self.max_connections = seconds, max_connections
        self._late: asyncio.TimerHandle | None = None

    @property
    def _since(self) -> float | None:
        """When the connection began to wait for a request; None: one is being answered."""
        if self._late is not None:
            return self._late.when() - self.seconds
        idle = self.timeout_keep_alive_task
        return None if idle is None else idle.when() - self.timeout_keep_alive

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for headers; close a connection that waits if there are too many."""
        super().connection_made(transport)
        self._wait_for_headers()
        if len(self.connections) > self.max_connections:
            warn_seldom(
                "%d connections are open, as many as the limit on open files (ulimit -n) allows: for each further one, "
                "the one that has waited longest for a request is closed",
                self.max_connections,
            )
            others = [other for other in self.connections if isinstance(other, Connection) and other is not self]
            times = {other: other._since for other in others if other._since is not None}
            oldest = min(times, key=times.__getitem__, default=self)
            oldest.connections.discard(oldest)
            oldest.timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._wait_for_headers(ended=True)

    def handle_events(self) -> None:
        """Pass requests on, and wait for the rest of the headers of the next one."""
        super().handle_events()
        self._wait_for_headers(ended=self.conn.their_state is not h11.IDLE or self.transport.is_closing())

    def _wait_for_headers(self, *, ended: bool = False) -> None:
        """Start to wait, unless it waits already or an idle connection has its own limit; or end it."""
        if ended and self._late is not None:
            self._late.cancel()
            self._late = None
        elif not ended and self._late is None and (self.timeout_keep_alive_task is None or self.conn.trailing_data[0]):
            self._late = self.loop.call_later(self.seconds, self.timeout_keep_alive_handler)


class Server(uvicorn.Server):
    """uvicorn, which ends normally on SIGTERM and Ctrl-C, once requests are finished."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen; many connections may wait in the kernel, although few are accepted at a time."""
        asyncio.get_running_loop().set_exception_handler(_log_error)
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(WAITING)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Refuse further requests, and finish those that are being answered; a second Ctrl-C ends at once."""
        if sig == signal.SIGINT and self.service.state == "draining":
            self.should_exit = self.force_exit = True
        self.service.drain()

    async def on_tick(self, counter: int) -> bool:
        """Return whether the server ends now."""
        self.should_exit = self.should_exit or self.service.drained() or self.service.failure is not None
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while the server runs; they are not raised again after it."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()


def serve(settings: Settings, *, host: str, port: int) -> None:
    """Serve a model until the process is told to stop.

    Args:
        settings: the model and the limits.
        host: address to listen at.
        port: port to listen at; 0: any free one.

    Raises:
        ValueError: the address is in use or not this machine's, or the model cannot be opened.
    """
    service = Service(settings)
    listening = _listen(host, port)
    named = f"[{host}]" if ":" in host else host
    is_loopback = ipaddress.ip_address(listening.getsockname()[0]).is_loopback
    hosts = {*LOOPBACK, named.lower()} if is_loopback and not service.keys else ()
    server = Server(configure(create_app(service, hosts=hosts), timeout_graceful_shutdown=ANSWERING), service)
    address = f"http://{named}:{listening.getsockname()[1]}"
    logger.info("listening at %s (page), %s/v1 (OpenAI's API)", address, address)
    if not service.keys and not is_loopback:
        logger.warning("anyone who reaches %s can use the server: it has no API key; see --api-key-file", address)
    server.run(sockets=[listening])
    if service.failure is not None:
        raise service.failure
    if service.busy or (service.chats and service.chats.running):
        logging.shutdown()
        os._exit(0)  # a thread in a forward pass, which nothing can stop, would delay the end of the interpreter


def configure(
    app: FastAPI, *, seconds: float = HEADERS, max_connections: int | None = None, **options: Any
) -> uvicorn.Config:
    """Return uvicorn's settings, which do not depend on the parsers that are installed.

    Args:
        app: the application.
        seconds: seconds for the headers of a request.
        max_connections: connections at one time; None: all but 128 of the files that the process may open, or a
            quarter.
        **options: further settings of uvicorn.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    max_connections = max_connections or max(files - FILES, files // 4)
    return uvicorn.Config(
        app,
        http=partial(Connection, seconds=seconds, max_connections=max_connections),  # type: ignore[arg-type] # called like the class
        ws="none",
        loop="asyncio",  # also where uvloop is installed
        backlog=ACCEPTED,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE,
        **options,
    )


def _log_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no one awaits as asyncio does, but failures to accept a connection seldom."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in OUT_OF_FILES:
        warn_seldom("connections wait, since none can be accepted (%s); see ulimit -n", error.strerror)
    else:
        loop.default_exception_handler(context)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=WAITING)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]  # Python adds the address
        raise ValueError(f"cannot listen at {host}:{port} ({reason}); choose another --port or --host") from error
