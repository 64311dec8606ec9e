"""Run the application on uvicorn, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import ipaddress
import logging
import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from embrew.serving.application import create_app
from embrew.serving.connections import Connection
from embrew.serving.service import Service
from embrew.serving.settings import Settings

logger = logging.getLogger(__name__)
ANSWERING = 5  # seconds for answers on their way, and for bodies that are still received
IDLE = 75  # seconds until an idle connection is closed: longer than clients and load balancers keep theirs
HEADERS = 20.0  # seconds for a client to send the headers of a request
FILES = 64  # of those that the process may open, for others than connections
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
ENDING = 5.0  # seconds for the batches that are being computed


class Server(uvicorn.Server):
    """uvicorn, which ends normally on SIGTERM and Ctrl-C, once requests are finished."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service
        self.ended = True  # whether the threads of the service ended, too

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Refuse further requests, and finish those that are being answered; a second Ctrl-C ends at once."""
        if sig == signal.SIGINT and self.service.state == "draining":
            self.should_exit = self.force_exit = True
        self.service.drain()

    async def on_tick(self, counter: int) -> bool:
        """Return whether the server ends now."""
        self.should_exit = self.should_exit or self.service.drained()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the last answers, then for the workers, while signals are still handled."""
        await super().shutdown(sockets)
        self.ended = self.service.close(ENDING)

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
        host: address that is listened at.
        port: of it; 0: any free one.

    Raises:
        ValueError: the address is in use or not this machine's, or the model cannot be opened.
    """
    listening = _listen(host, port)
    service = Service(settings)
    named = f"[{host}]" if ":" in host else host.lower()
    hosts = {*LOOPBACK, named} if _is_loopback(listening) and not settings.keys else ()
    server = Server(configured(create_app(service, hosts=hosts), timeout_graceful_shutdown=ANSWERING), service)

    def loaded() -> None:
        server.should_exit = server.should_exit or service.failure is not None

    _tell(settings, host, listening)
    service.load_in_thread(loaded)
    server.run(sockets=[listening])
    if service.failure is not None:
        raise service.failure
    if not server.ended:
        logging.shutdown()
        os._exit(0)  # a thread in a forward pass, which nothing can stop, would abort an interpreter that ends


def configured(app: FastAPI, *, seconds: float = HEADERS, most: int | None = None, **options: Any) -> uvicorn.Config:
    """Return uvicorn's settings, which do not depend on the parsers that are installed.

    Args:
        app: the application.
        seconds: for the headers of a request.
        most: connections at one time; by default all but 64 of the files that the process may open.
        **options: further settings of uvicorn.
    """
    most = most or max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES)
    return uvicorn.Config(
        app,
        http=partial(Connection, seconds=seconds, most=most),  # type: ignore[arg-type] # called like the class
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE,
        **options,
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]  # Python adds the address
        raise ValueError(f"cannot listen at {host}:{port} ({reason}); choose another --port or --host") from error


def _tell(settings: Settings, host: str, listening: socket.socket) -> None:
    """Log the addresses, and warn where others can use the server without a key."""
    port = listening.getsockname()[1]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    logger.info("listening at %s (page), %s/v1 (OpenAI's API)", address, address)
    if not settings.keys and not _is_loopback(listening):
        logger.warning("anyone who reaches %s can use the server: it has no API key; see --api-key-file", address)


def _is_loopback(listening: socket.socket) -> bool:
    return ipaddress.ip_address(listening.getsockname()[0]).is_loopback
