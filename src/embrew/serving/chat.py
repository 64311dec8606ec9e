"""Chats of a resident language model: each forward pass of an answer waits for its turn among batches of texts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import orjson

from embrew.chat import Answer, Sampling, check_room, prompt_ids, write
from embrew.resident import Resident
from embrew.serving.errors import ApiError
from embrew.serving.schemas import ChatRequest
from embrew.serving.settings import Settings

Parts = AsyncGenerator[str | Answer, None]  # of an answer as it is written, and then the answer


class Cancelled(Exception):
    """The client has closed its request, so the answer ends."""


class Chats:
    """Answers that are written, and those that wait.

    Args:
        resident: language model that writes.
        settings: settings of the server.
        computing: thread in which all forward passes run, one after the other: a chat has one per token.

    Attributes:
        running: events that end an answer, one per chat that waits or is written.
    """

    def __init__(self, resident: Resident, settings: Settings, computing: ThreadPoolExecutor) -> None:
        self.resident, self.settings, self.computing = resident, settings, computing
        self.template = None if settings.chat_template is None else settings.chat_template.read_text(encoding="utf-8")
        self.running: set[threading.Event] = set()
        self.writing = ThreadPoolExecutor(settings.max_chats, "embrew-chat")

    def read(self, request: ChatRequest) -> list[int]:
        """Return the token ids of the messages; call it in the thread that tokenises.

        Raises:
            ApiError: messages that the template refuses, or too many tokens.
        """
        messages = [{"role": message.role, "content": message.text} for message in request.messages]
        try:
            ids = prompt_ids(self.resident.tokenizer, messages, self.template)
        except ValueError as error:
            raise ApiError(400, str(error), param="messages", code="messages_refused") from None
        try:
            check_room(self.resident.model, len(ids))
        except ValueError as error:
            raise ApiError(400, str(error), param="messages", code="context_length_exceeded") from None
        return ids

    def sampling(self, request: ChatRequest) -> Sampling:
        """Return how the answer to a request is drawn."""
        limit = self.settings.max_answer_tokens
        wanted = request.max_completion_tokens or request.max_tokens or limit
        stop = [request.stop] if isinstance(request.stop, str) else request.stop or ()
        timeout = self.settings.timeout
        return Sampling(min(wanted, limit), request.temperature, request.top_p, stop, request.seed, timeout)

    async def answer(self, ids: Sequence[int], sampling: Sampling) -> Parts:
        """Yield the parts of an answer as they are written, and then the answer; where it is closed, writing ends.

        Raises:
            ApiError: nothing was written within `timeout`.
        """
        loop, ended = asyncio.get_running_loop(), threading.Event()
        parts: asyncio.Queue[str | None] = asyncio.Queue()

        def step(call: Callable[[], Any]) -> Any:
            if ended.is_set():
                raise Cancelled
            return self.computing.submit(call).result()

        def send(text: str) -> None:
            loop.call_soon_threadsafe(parts.put_nowait, text)

        def run() -> Answer:
            if ended.is_set():
                raise Cancelled
            return write(self.resident.model, self.resident.tokenizer, ids, sampling, send=send, step=step)

        self.running.add(ended)
        written = loop.run_in_executor(self.writing, run)
        written.add_done_callback(lambda _: parts.put_nowait(None))
        try:
            while True:
                async with asyncio.timeout(self.settings.timeout):
                    part = await parts.get()
                if part is None:
                    break
                yield part
            yield await written
        except TimeoutError:
            message = f"nothing was written within {self.settings.timeout:g} seconds; try again later"
            raise ApiError(503, message, code="timeout", retry_after=10) from None
        finally:
            ended.set()
            self.running.discard(ended)
            written.add_done_callback(lambda done: done.cancelled() or done.exception())  # it was logged, or wanted

    def close(self) -> None:
        """End all answers."""
        for ended in list(self.running):
            ended.set()
        self.writing.shutdown(wait=False, cancel_futures=True)


def completion(answer: Answer, head: dict[str, Any]) -> bytes:
    """Return OpenAI's answer as JSON."""
    message = {"role": "assistant", "content": answer.text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}
    return orjson.dumps({**head, "object": "chat.completion", "choices": [choice], "usage": usage(answer)})


async def events(parts: Parts, head: dict[str, Any], *, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """Yield OpenAI's server-sent events of an answer; an error after the first is an event, too."""

    def event(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
        choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]
        return _event({**head, "object": "chat.completion.chunk", "choices": choices})

    yield event({"role": "assistant", "content": ""})
    async with aclosing(parts):
        try:
            async for part in parts:
                if isinstance(part, str):
                    yield event({"content": part})
                    continue
                yield event({}, part.finish_reason)
                if include_usage:
                    yield _event({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage(part)})
        except ApiError as error:
            yield b"data: " + error.response().body + b"\n\n"
    yield b"data: [DONE]\n\n"


def usage(answer: Answer) -> dict[str, int]:
    """Return the tokens that were read and written."""
    read, written = answer.prompt_tokens, len(answer.ids)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"
