"""Texts that wait to be computed, in the order of their requests."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from embrew.serving.asked import Key
from embrew.serving.errors import ApiError, stopping
from embrew.serving.tickets import Entry, Ticket

GATHERING = 0.02  # of a batch's seconds: the longest wait for the next requests of clients that it answered


class Queue:
    """Texts that wait, grouped by what can share a forward pass; the oldest decides which group is next.

    Args:
        most: tokens that may wait or be computed; more are refused, unless none wait.

    Attributes:
        tokens: that wait or are computed.
        expecting: estimated tokens of requests that are being tokenised.
        texts: that wait or are computed.
        dropped: texts that were removed, because their client had gone.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.tokens = self.texts = self.dropped = self.expecting = 0
        self.speed = 0.0  # tokens per second, lately
        self._before = 0  # tokens here when the last batch was computed
        self._waiting: dict[Key, OrderedDict[Ticket, deque[Entry]]] = {}
        self._changed = threading.Condition()
        self._closed = False

    def put(self, ticket: Ticket) -> None:
        """Append the texts of a request.

        Raises:
            ApiError: too many tokens wait, or the queue is closed.
        """
        work = sum(ticket.read.work)
        with self._changed:
            if self._closed:
                raise stopping()
            self._check_room(self.tokens, work)
            self.tokens += work
            self.texts += len(ticket.read.rows)
            entries = deque(Entry(ticket, place) for place in range(len(ticket.read.rows)))
            self._waiting.setdefault(ticket.read.key, OrderedDict())[ticket] = entries
            self._changed.notify_all()

    def check_not_full(self) -> None:
        """Refuse a request before its body is read.

        Raises:
            ApiError: as many tokens wait or are expected as may.
        """
        with self._changed:
            self._check_room(self.tokens + self.expecting, 1)

    @contextmanager
    def expects(self, tokens: int) -> Iterator[None]:
        """Count the estimated tokens of a request while it is tokenised.

        Raises:
            ApiError: too many tokens wait or are expected.
        """
        with self._changed:
            self._check_room(self.tokens + self.expecting, tokens)
            self.expecting += tokens
        try:
            yield
        finally:
            with self._changed:
                self.expecting -= tokens

    def cancel(self, ticket: Ticket) -> None:
        """Remove the texts of a request that still wait; those that are being computed are not interrupted."""
        with self._changed:
            ticket.cancelled = True
            entries = self._remove(ticket)
            self.dropped += len(entries)
            self._count(entries)

    def expected(self) -> float:
        """Return the estimated seconds until all texts that wait are computed, from 1 to 60."""
        return min(60.0, max(1.0, self.tokens / self.speed if self.speed else 1.0))

    def take(self, most: int) -> list[Entry] | None:
        """Return the oldest text and others that share its forward pass, in order; wait until there is one.

        Args:
            most: tokens of all together; a longer text goes alone.

        Returns:
            None: the queue is closed, and empty.
        """
        with self._changed:
            while not self._waiting:
                if self._closed:
                    return None
                self._changed.wait()
            return self._fill(min(self._waiting.values(), key=lambda tickets: next(iter(tickets)).arrived), most)

    def done(self, entries: Sequence[Entry], seconds: float) -> None:
        """Count texts as computed, after that many seconds."""
        with self._changed:
            self._before = self.tokens
            work = self._count(entries)
            if work and seconds > 0:
                self.speed = work / seconds if not self.speed else 0.8 * self.speed + 0.2 * work / seconds

    def gather(self, most: int, seconds: float) -> None:
        """Wait for the next requests of clients that were just answered, so that all share the next batch.

        Without it, clients that wait for their answers fall into two groups, and each batch holds half of their texts.

        Args:
            most: tokens of a batch; where as many are here, or nearly as many as before the last one, nothing is waited
                for.
            seconds: of the last batch; at most 2 % of them are waited.
        """
        with self._changed:
            enough = min(most, 0.9 * self._before)
            self._changed.wait_for(lambda: self._closed or self.tokens >= enough, GATHERING * seconds)

    def put_back(self, entries: Sequence[Entry], *, alone: bool) -> None:
        """Return texts to the front whose worker ended; `alone`: each is computed alone from now on."""
        with self._changed:
            for entry in reversed(entries):
                if entry.ticket.cancelled:
                    self._count([entry])
                    continue
                tickets = self._waiting.setdefault(entry.ticket.read.key, OrderedDict())
                tickets.setdefault(entry.ticket, deque()).appendleft(entry._replace(again=alone or entry.again))
                tickets.move_to_end(entry.ticket, last=False)
            self._changed.notify_all()

    def close(self) -> None:
        """Let `take` end once all is computed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _fill(self, tickets: OrderedDict[Ticket, deque[Entry]], most: int) -> list[Entry]:
        """Take texts of the first tickets until the tokens are used up."""
        taken: list[Entry] = []
        while tickets:
            ticket, entries = next(iter(tickets.items()))
            while entries:
                if taken and (entries[0].again or taken[0].again or entries[0].work > most):
                    return taken
                taken.append(entries.popleft())
                most -= taken[-1].work
                ticket.started = ticket.started or time.monotonic()
            self._remove(ticket)
        return taken

    def _remove(self, ticket: Ticket) -> Sequence[Entry]:
        """Remove the texts of a request that wait, and return them."""
        tickets = self._waiting.get(ticket.read.key, OrderedDict())
        entries = tickets.pop(ticket, ())
        if not tickets:
            self._waiting.pop(ticket.read.key, None)
        return entries

    def _check_room(self, here: int, more: int) -> None:
        if here and here + more > self.most:
            raise ApiError(
                429,
                f"{here} tokens wait to be computed, and at most {self.most} may; try again later",
                code="queue_full",
                retry_after=self.expected(),
            )

    def _count(self, entries: Iterable[Entry]) -> int:
        """Subtract texts from the counts; return their tokens."""
        works = [entry.work for entry in entries]
        self.tokens -= sum(works)
        self.texts -= len(works)
        return sum(works)
