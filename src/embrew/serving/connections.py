"""Connections of clients: how long they may take to send a request's headers, and how many are open at one time."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """uvicorn's protocol on h11, whatever other parser is installed, with two limits that uvicorn does not have.

    Args:
        seconds: for the headers of a request, from the connection or from the first byte after an answer.
        most: connections at one time; a further one closes the one that has waited longest for a request, or itself
            where requests are being answered on all others.
    """

    def __init__(self, *, seconds: float, most: int, **given: Any) -> None:
        super().__init__(**given)
        self.seconds, self.most = seconds, most
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
        if len(self.connections) > self.most:
            others = [each for each in self.connections if isinstance(each, Connection) and each is not self]
            times = {each: each._since for each in others if each._since is not None}
            first = min(times, key=times.__getitem__, default=self)
            first.connections.discard(first)
            first.timeout_keep_alive_handler()

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
