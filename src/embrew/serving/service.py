"""The service behind the routes: opens the model, reads texts, queues them, and waits for their results."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
import torch

from embrew.chat import Answer
from embrew.encoder import Encoder
from embrew.files.formats import EXPORT
from embrew.model.batching import default_batch_tokens
from embrew.opening import open_model
from embrew.resident import Resident
from embrew.runtimes.reference import compare_with_reference
from embrew.serving.batching import Queue
from embrew.serving.chat import Cancelled, Chats, Parts
from embrew.serving.errors import EXCERPT, ApiError
from embrew.serving.metrics import Facts, Metrics
from embrew.serving.models import Description, Key, ReadOptions, ServedEncoder, ServedStock, TokenizedTexts
from embrew.serving.resident import BaseAlone, ResidentEncoder
from embrew.serving.schemas import Text
from embrew.serving.settings import Settings
from embrew.text_encoder import TextEncoder, tokenizer_sha256
from embrew.variants import VariantEncoder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)
Model = ServedEncoder | ServedStock
Result = TypeVar("Result")
BATCHES = 16  # whose tokens may wait by default
CHARACTERS = 100_000  # limit of a text by default; more if the longest limit in tokens allows more:
CHARACTERS_PER_TOKEN = 8
EXAMPLE = "a text that every model can embed"


class Computed(NamedTuple):
    """The texts of a request, computed: per text what the engine returned, their tokens, and headers with times."""

    results: Sequence[np.ndarray]
    tokens: int
    headers: dict[str, str]


class Service:
    """A model that is served, or encoders of one language model and its chats, by this process alone.

    Raises:
        ValueError: API keys or int8 ranges that cannot be used.

    Attributes:
        folders: folders of encoders, by name.
        models: served models by the names that requests give.
        resident: language model with encoders; None: one model is served alone.
        chats: its chats; None: it does not chat.
        load_missing: loads an encoder of `folders` that a request names; None: all of them are loaded at the start.
        keys: API keys, one of which a request needs; none: no key is needed.
        failure: error with which the model could not be opened; None: there is none.
        broken: reason why nothing is computed any more; else empty.
        created: time when the service began, in seconds since 1970.
        busy: whether a thread opens the model or computes.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.keys = settings.read_keys()
        self.ranges, self.ranges_of = settings.read_ranges()
        self.folders = settings.read_encoders()
        self.created = int(time.time())
        self.failure: Exception | None = None
        self.broken = ""
        self.busy = False
        self.metrics = Metrics()
        self.queue = Queue(self.metrics)
        self.models: dict[str, Model] = {}
        self.resident: Resident | None = None
        self.chats: Chats | None = None
        self.load_missing: Callable[[str], Awaitable[Any]] | None = None
        self._example: TokenizedTexts | None = None
        self._deadline: float | None = None  # when requests that are not finished get 503
        self._tokenizing_calls = 0  # those that run or wait
        self._computing = ThreadPoolExecutor(1, "embrew-worker")
        self._loading = ThreadPoolExecutor(1, "embrew-loader")  # encoders that are loaded at run time
        self._tokenizing = ThreadPoolExecutor(1, "embrew-tokenizer")  # one: tokenizers keep settings between calls

    @property
    def state(self) -> Literal["loading", "ready", "draining", "broken"]:
        """State of the service."""
        if self._deadline is not None:
            return "draining"
        return "broken" if self.broken else "loading" if self._example is None else "ready"

    def load(self) -> None:
        """Open the model, compare an export with its `parity.json`, and compute a text; keep an error in `failure`."""
        settings = self.settings
        try:
            if settings.is_resident:
                self._open_resident()
                return
            opened = open_model(
                settings.model, dtype=settings.dtype, backend=settings.backend, pooling=settings.pooling
            )
            if isinstance(opened, Encoder):
                model: Model = ServedEncoder(opened.eval(), settings)
            elif isinstance(opened, VariantEncoder):
                raise ValueError(f"{settings.model} writes variants of each text, which is not served; give another")
            else:
                _verify(opened, Path(settings.model))
                model = ServedStock(opened, settings)
            made_of = self.ranges_of
            served = (model.about["model_sha"], tokenizer_sha256(opened))
            if made_of is not None and (made_of["model_hash"], made_of["tokenizer_sha256"]) != served:
                message = "the int8 ranges are of vectors of another model, tokenizer or dtype"
                raise ValueError(f"{message}; encode a corpus with this one")
            example = model.read([EXAMPLE], ReadOptions())
            model.compute(example.key, example.rows)
            self.start(model, example)
        except Exception as error:
            self.failure, self.broken = error, f"the model cannot be opened: {error}"

    def start(self, model: Model, example: TokenizedTexts) -> None:
        """Offer a model, and a text that it can compute."""
        self.models = dict.fromkeys(self.settings.names, model)
        self._start(example, model.batch_tokens)

    def _start(self, example: TokenizedTexts, batch_tokens: int) -> None:
        self.metrics.prefixes = lambda: {id(model): model.prefix for model in self.models.values()}.values()
        self.queue.batch_tokens = batch_tokens
        self.queue.max_tokens = self.settings.max_queued_tokens or BATCHES * batch_tokens
        self._example = example
        logger.info("%s is ready", self.settings.names[0])

    def _open_resident(self) -> None:
        """Open the language model and its encoders; compute a text with each."""
        settings = self.settings
        if self.load_missing is None and len(self.folders) > settings.max_encoders:
            raise ValueError(f"{len(self.folders)} encoders, and max_encoders={settings.max_encoders}; raise it")
        resident = Resident.open(settings.model, dtype=settings.dtype, max_encoders=settings.max_encoders)
        self.resident = resident
        if settings.chat:
            self.chats = Chats(resident, settings, self._computing)
            if self.chats.template is None and resident.tokenizer.chat_template is None:
                raise ValueError(f"the tokenizer of {settings.model} has no chat template; give one by --chat-template")
        for name, folder in () if self.load_missing else self.folders.items():
            self._open_encoder(name, folder)
        example = BaseAlone(resident).example()
        example.key.model.compute(example.key, example.rows)
        self._start(example, settings.max_batch_tokens or default_batch_tokens(resident.model.device))

    def _open_encoder(self, name: str, folder: str | Path) -> None:
        assert self.resident is not None
        encoder = self.resident.load(name, folder)
        try:
            model = ResidentEncoder(encoder, self.settings, self.resident)
            example = model.read([EXAMPLE], ReadOptions())
            example.key.model.compute(example.key, example.rows)
        except BaseException:
            self.resident.unload(name)
            raise
        self.models = {**self.models, name: model}
        logger.info("encoder %s is ready", name)

    async def load_encoder(self, name: str, folder: str | Path) -> None:
        """Load an encoder while others compute.

        Raises:
            ApiError: it cannot be loaded, or this server has no such encoders.
        """
        self._check_resident()
        try:
            if name in self.settings.names:
                raise ValueError(f"{name} is the name of the language model; choose another")
            await asyncio.get_running_loop().run_in_executor(self._loading, self._open_encoder, name, folder)
        except (ValueError, OSError, ApiError) as error:
            raise ApiError(400, f"the encoder cannot be loaded: {error}", param="name", code="not_loaded") from error

    async def unload_encoder(self, name: str) -> None:
        """Unload an encoder; requests that were accepted are answered first.

        Raises:
            ApiError: there is none of this name.
        """
        resident = self._check_resident()
        if self.models.pop(name, None) is None:
            raise self._no_model(name)
        await asyncio.get_running_loop().run_in_executor(self._loading, resident.unload, name)

    def _check_resident(self) -> Resident:
        self.check_ready()
        if self.resident is None:
            message = "this server has one model; start it with a language model and --encoder, or --encoder-folder"
            raise ApiError(400, message, code="not_offered")
        return self.resident

    async def run(self) -> None:
        """Open the model, unless it is open, and compute what is queued; other tasks answer meanwhile."""
        loop = asyncio.get_running_loop()

        async def compute(work: Callable[..., Any], *arguments: Any) -> Any:
            self.busy = True
            try:
                return await loop.run_in_executor(self._computing, work, *arguments)
            finally:
                self.busy = False

        if self._example is None:
            await compute(self.load)
        if self._example is None:
            return
        try:
            await self.queue.run(partial(compute, self._compute), self._example)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            logger.exception("the server no longer computes: %s", reason)
            self.broken = f"the model computes nothing any more: {reason}"
            self._fail_all()

    def _compute(self, key: Key, rows: Sequence[Any]) -> Sequence[np.ndarray]:
        model = key.model or next(iter(self.models.values()))
        results: Sequence[np.ndarray] = model.compute(key, rows)
        return results

    def drain(self) -> None:
        """Accept no further requests; may be called in a signal handler."""
        self._deadline = self._deadline or time.monotonic() + self.settings.drain

    def drained(self) -> bool:
        """Return whether requests are refused, and all others are answered: after `drain` seconds with 503."""
        if self._deadline is None:
            return False
        if time.monotonic() > self._deadline:
            self._fail_all()
        return not (self._tokenizing_calls or self.queue.jobs or (self.chats and self.chats.running))

    def close(self) -> None:
        """End the threads, as far as they do not compute."""
        self.drain()
        if self.chats is not None:
            self.chats.close()
        for pool in (self._computing, self._loading, self._tokenizing):
            pool.shutdown(wait=False, cancel_futures=True)

    def check_ready(self) -> None:
        """Raise unless the service computes.

        Raises:
            ApiError: 503: the model is being opened, the server stops, or nothing can be computed any more.
        """
        if self.state != "ready":
            raise self.refusal()

    def ready(self, name: str | None = None) -> Description:
        """Return the description of a model; None: there is one.

        Raises:
            ApiError: as `check_ready` and `find`.
        """
        return self.find(name).about

    def find(self, name: str | None) -> Model:
        """Return a model by name; None: the only one.

        Raises:
            ApiError: as `check_ready`; or there is no such model, or there are several.
        """
        self.check_ready()
        if name is not None:
            model = self.models.get(name)
        else:
            models = {id(model): model for model in self.models.values()}
            model = next(iter(models.values())) if len(models) == 1 and self.load_missing is None else None
        if model is None:
            raise self._no_model(name)
        return model

    async def available(self, name: str | None) -> Model:
        """Return a model as `find`; load it first where encoders are loaded when a request names them."""
        if self.load_missing is not None and name in self.folders:
            await self.load_missing(name)
        return self.find(name)

    @property
    def names(self) -> list[str]:
        """Names of the models that embed, and of the one that chats."""
        if self.resident is None:
            return [self.settings.names[0]]
        return [
            *{**self.models, **(self.folders if self.load_missing else {})},
            *self.settings.names[: bool(self.chats)],
        ]

    def _no_model(self, name: str | None) -> ApiError:
        names = ", ".join(self.names[: -1 if self.chats else None]) or "no encoder"
        if name is None:
            return ApiError(400, f"model is missing; this server has {names}", param="model")
        return ApiError(
            404, f"model={name[:EXCERPT]!r}; this server has {names}", param="model", code="model_not_found"
        )

    def refusal(self) -> ApiError:
        """Return why nothing is computed."""
        if self.state == "draining":
            return ApiError(503, "the server stops; try again later", code="draining", retry_after=5)
        if self.broken:
            return ApiError(503, self.broken, code="broken", retry_after=30)
        return ApiError(503, "the model is being loaded; try again later", code="loading", retry_after=5)

    @property
    def characters(self) -> int:
        """Characters (or token ids) that a text may have."""
        self.check_ready()
        longest = max((model.about["max_length"]["other"] or 0 for model in self.models.values()), default=0)
        return self.settings.max_text_characters or max(CHARACTERS, CHARACTERS_PER_TOKEN * longest)

    def check_size(self, texts: Sequence[Text], options: ReadOptions, *, param: str = "input") -> None:
        """Refuse texts whose tokenising alone would hold up other requests.

        Raises:
            ApiError: 413: too many texts, or too many characters in one of them or in the prompt; 503: not ready.
        """
        max_characters, max_texts = self.characters, self.settings.max_client_batch_size
        if len(texts) > max_texts:
            message = f"{len(texts)} texts; at most {max_texts} per request are allowed: send several requests"
            raise ApiError(413, message, param=param, code="too_many_texts")
        inputs = [("prompt", options.prompt or ""), *((f"text {index}", text) for index, text in enumerate(texts))]
        for name, text in inputs:
            if len(text) > max_characters:
                unit = "characters" if isinstance(text, str) else "token ids"
                message = f"{name} has {len(text)} {unit}; at most {max_characters} are read: send its beginning, or "
                field = "prompt" if name == "prompt" else param
                raise ApiError(413, f"{message}parts of it", param=field, code="too_many_characters")

    async def counted(self, parts: Parts, facts: Facts) -> Parts:
        """Yield the parts of an answer; count its tokens, also for the log line of the request."""
        async with aclosing(parts):
            try:
                async for part in parts:
                    if isinstance(part, Answer):
                        facts |= {"tokens": part.prompt_tokens, "written": len(part.ids)}
                        self.metrics.chat_tokens.inc(len(part.ids))
                    yield part
            except (Cancelled, futures.CancelledError):
                raise self.refusal() from None

    async def compute(self, texts: list[Text], options: ReadOptions) -> Computed:
        """Read texts, queue them, and wait until they are computed.

        Raises:
            ApiError: they cannot be read or computed, too many wait, or it took too long.
        """
        self.check_size(texts, options)
        begun = time.monotonic()
        try:
            async with asyncio.timeout(self.settings.timeout):
                model = await self.available(options.model)
                tokenized = await self.tokenize(methodcaller("read", texts, options), model)
                count, limit = sum(tokenized.tokens), self.queue.batch_tokens
                if options.states and len(texts) > 1 and count > limit:
                    message = f"states of {count} tokens; at most {limit} per request are allowed, or one text: send "
                    raise ApiError(413, f"{message}several requests", param="input", code="too_many_states")
                self.check_ready()  # still
                job = await self.queue.compute(tokenized)
        except TimeoutError:
            message = f"not computed within {self.settings.timeout:g} seconds; try again later"
            raise ApiError(503, message, code="timeout", retry_after=self.queue.expected_seconds()) from None
        waited = (job.started or job.arrived) - job.arrived
        self.metrics.queue_seconds.observe(waited)
        times = {"tokenization": job.arrived - begun, "queue": waited, "inference": job.computing}
        headers = {f"x-{name}-time": f"{1000 * seconds:.1f}" for name, seconds in times.items()}
        results = [job.results[index] for index in range(len(texts))]
        return Computed(results, count, {**headers, "x-compute-tokens": str(count)})

    async def tokenize(self, work: Callable[[Any], Result], model: Any) -> Result:
        """Return what a function makes of the text side of a model, or of chats, in the thread that tokenises."""
        self._tokenizing_calls += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._tokenizing, work, model)
        finally:
            self._tokenizing_calls -= 1

    def _fail_all(self) -> None:
        for job in self.queue.jobs:
            job.fail(self.refusal())
        if self.chats is not None:
            self.chats.close()


def _verify(model: SentenceTransformer, folder: Path) -> None:
    """Compare an export for Sentence-Transformers with its `parity.json`; say where there is none."""
    if not (folder / EXPORT.file).is_file():
        logger.warning("%s has no %s: its vectors are not verified", folder, EXPORT.file)
        return
    exact = next(model.parameters()).dtype == torch.float32
    compare_with_reference(cast(TextEncoder, model), folder, exact=exact, software="Sentence-Transformers")
