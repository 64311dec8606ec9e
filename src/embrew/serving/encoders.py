"""An encoder: its text side, which tokenises without weights, and its computing side."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from embrew.encoder import Encoder
from embrew.encoding import embed, rows_by_text
from embrew.model.batching import NotFinite, batches_of
from embrew.model.contexts import PreparedContext
from embrew.model.prefix import FRAME, WORTHWHILE
from embrew.runtimes.converted import shape_of
from embrew.runtimes.encoder import RuntimeEncoder
from embrew.serving.errors import ApiError
from embrew.serving.reading import NOT_FINITE, Key, ReadOptions, TokenizedTexts, check_finite, check_lengths
from embrew.serving.schemas import Text
from embrew.text.template import Template, tokens_before
from embrew.text.texts import PREPARATIONS, SIDES, check_text
from embrew.text.tokens import Row, Segment, Tokens

CHARACTERS = 32  # of a long text, per token that is kept of it


class EncoderReader(Encoder):
    """An encoder's text side: it holds no weights, so that every tokenizer thread has its own copy.

    Args:
        encoder: the encoder, which is not kept.
        default_prompt_name: prompt or context where a request names none.

    Attributes:
        about: the model, for `/info`.
    """

    def __init__(self, encoder: Encoder, *, default_prompt_name: str | None = None) -> None:
        pooling = replace(encoder.pooling, latents=None, heads=None, head_width=None)
        settings = encoder.settings.replace(demonstrations=None, pooling=pooling)  # trained parts stay in the engine
        super().__init__(shape_of(encoder), encoder.tokenizer, encoder.base, settings)  # type: ignore[arg-type]
        self.contexts = dict(encoder.contexts)
        self.causal = encoder.shares_prefixes
        self.converted = isinstance(encoder, RuntimeEncoder)
        self.default = default_prompt_name
        if default_prompt_name is not None:
            encoder.resolve_prompt(default_prompt_name, None)
        description = encoder.describe()
        self.about: dict[str, Any] = {
            "model_sha": encoder.weights_hash(),
            "model_dtype": description["dtype"],
            "backend": description.get("backend", "torch"),
            "pooling": description["pooling"],
            "normalize": encoder.normalize,
            "always_normalizes": self.converted and encoder.normalizes,
            "dimensions": encoder.get_embedding_dimension(),
            "num_layers": None if self.converted else encoder.backbone.num_layers,
            "prompts": dict(encoder.prompts),
            "contexts": sorted(encoder.contexts),
            "default_prompt_name": default_prompt_name or encoder.default_prompt_name,
            "max_length": {**encoder.max_length, "other": encoder.max_seq_length},
        }

    def read(self, texts: list[Text], options: ReadOptions, *, first: int = 0) -> TokenizedTexts:
        """Return the rows of texts; `first` is the number of the first one, for error messages.

        Raises:
            ApiError: an unknown prompt, a number of layers that is not there, invalid Unicode, token ids out of range,
                or a text that is too long.
        """
        self._check(options)
        name, words, context, limit = self._resolve(options)
        rows = self._rows(texts, options, words, context, limit if options.truncate else None, first)
        if not options.truncate:
            extra = 0 if context is None else len(context.row.ids)
            check_lengths([max(len(row.ids) for row in each) for each in rows], limit + extra, first)
        shared = _frame(rows[0][0]) if self.causal and not options.states else 0
        shared = shared if shared >= WORTHWHILE else 0
        depth = None if options.num_layers == self.backbone.num_layers else options.num_layers
        key = Key(name if context is not None else None, words if shared else "", depth, options.states)
        tokens = [sum(len(row.ids) for row in each) for each in rows]
        return TokenizedTexts(key, rows, tokens, [max(1, count - shared * len(rows[0])) for count in tokens])

    def tokenize(self, text: Text, options: ReadOptions, *, special: bool) -> list[dict[str, Any]]:
        """Return the tokens of a text, as `schemas.Token`: of its row, or of the text alone."""
        self._check(options)
        _, words, context, limit = self._resolve(options)
        (row, *_), *_ = self._rows([text], options, words, context, limit, 0)
        ids = [i for i, segment in zip(row.ids, row.segments, strict=True) if segment == Segment.TEXT]
        spans = iter(_spans(self.template, text, words, ids) if isinstance(text, str) else [])
        tokens = []
        names = self.template.tokenizer.convert_ids_to_tokens(row.ids)
        for i, name, segment in zip(row.ids, names, row.segments, strict=True):
            start, stop = next(spans, (None, None)) if segment == Segment.TEXT else (None, None)
            token = {"id": i, "text": name or "", "special": segment != Segment.TEXT, "start": start, "stop": stop}
            if special or segment == Segment.TEXT:
                tokens.append(token)
        return tokens

    def _check(self, options: ReadOptions) -> None:
        depth, layers = options.num_layers, self.backbone.num_layers
        if options.prompt and not any("{instruction}" in template.pattern for template in self.templates):
            reason = "this model's template has no place for a prompt, and would ignore it; leave it out"
            raise ApiError(400, f"prompt: {reason}", param="prompt", code="not_offered")
        if depth is not None and (depth > layers or (self.converted and depth < layers)):
            runs = "OpenVINO runs all" if self.converted else "this model has"
            raise ApiError(400, f"num_layers={depth}; {runs} {layers} layers", param="num_layers")
        if options.states and (self.converted or len(self.templates) > 1):
            reason = "OpenVINO computes pooled vectors only" if self.converted else "this model has several templates"
            raise ApiError(400, f"states of tokens are not offered: {reason}; use /embed", code="not_offered")

    def _rows(
        self,
        texts: list[Text],
        options: ReadOptions,
        words: str,
        context: PreparedContext | None,
        limit: int | None,
        first: int,
    ) -> list[list[Row]]:
        try:
            checked = self.texts_of(texts, first=first)[0]
        except ValueError as error:
            raise ApiError(422, str(error), param="input", code="token_id_out_of_range") from None
        check_unicode(checked, first)
        try:
            return rows_by_text(self, checked, words, context, limit)
        except ValueError:  # nothing else is left that can be wrong
            field = "prompt_name" if options.prompt is None else "prompt"
            message = f"the prompt leaves no room for a text within {limit} tokens; shorten it"
            raise ApiError(400, message, param=field, code="prompt_too_long") from None

    def _resolve(self, options: ReadOptions) -> tuple[str | None, str, PreparedContext | None, int]:
        """Return name and words of the prompt, the context, and the limit without the context's tokens."""
        name = options.prompt_name
        if name is None and options.prompt is None and options.side is None:
            name = self.default
        side = options.side or (name if name in SIDES else None)
        if name is None and options.prompt is None:
            name = side
        limit = self.max_seq_length if side is None else self.max_length[side]
        try:
            return name or self.default_prompt_name, *self.resolve_prompt(name, options.prompt), limit
        except ValueError as error:
            raise ApiError(400, str(error), param="prompt_name", code="unknown_prompt") from None


class EncoderEngine:
    """Vectors, and states of tokens, of rows that an `EncoderReader` made.

    Args:
        encoder: what computes them.
        batch_tokens: padded tokens per forward pass.
        prefix_bytes: memory for the keys and values of prompts.
    """

    def __init__(self, encoder: Encoder, *, batch_tokens: int, prefix_bytes: int) -> None:
        self.encoder, self.batch_tokens = encoder, batch_tokens
        self._stack = ExitStack()  # never closed: a served model does not change
        self.prefix = self._stack.enter_context(encoder.fixed())
        self.prefix.most = prefix_bytes

    def compute(self, key: Key, rows: Sequence[Sequence[Row]]) -> list[np.ndarray]:
        """Return float32 `(templates, dimensions)` per text, neither truncated nor normalised; or its states."""
        context = None if key.context is None else self.encoder.contexts[key.context]
        if key.states:
            return self._states(key, [each[0] for each in rows], context)
        try:
            parts = [
                embed(
                    self.encoder,
                    lambda start, stop, of_template=of_template: list(of_template[start:stop]),  # type: ignore[misc]
                    len(of_template),
                    context=context,
                    num_layers=key.num_layers,
                    batch_size=None,
                    batch_tokens=self.batch_tokens,
                )
                for of_template in zip(*rows, strict=True)
            ]
        except NotFinite:  # its text is named by its place in the batch, which says nothing to a client
            raise ValueError(NOT_FINITE) from None
        return list(torch.stack(parts, dim=1).numpy())

    def counts(self) -> dict[str, int]:
        """Return how often prefixes were read and computed, and the bytes that are kept."""
        return {"hits": self.prefix.hits, "misses": self.prefix.misses, "bytes": self.prefix.bytes}

    def _states(self, key: Key, rows: Sequence[Row], context: PreparedContext | None) -> list[np.ndarray]:
        """Return the final states of each row's tokens, float32 `(tokens, hidden)`."""
        results: list[np.ndarray] = [np.empty(0)] * len(rows)
        for batch in batches_of(rows, batch_size=len(rows), batch_tokens=self.batch_tokens, cost=self.encoder.cost):
            tokens = Tokens.pad([rows[i] for i in batch])
            if context is not None:
                tokens = tokens.with_soft(context.vectors)
            with torch.inference_mode():
                states = self.encoder.hidden_states(tokens.to(self.encoder.device), num_layers=key.num_layers)
            states = states.float().cpu()
            for index, i in enumerate(batch):
                results[i] = states[index][tokens.attention_mask[index].bool()].numpy()
        return check_finite(results)


def check_unicode(texts: Sequence[str | Sequence[int]], first: int) -> None:
    """Raise if a string is no valid Unicode; `first` is the number of the first text."""
    for index, text in enumerate(texts, first):
        try:
            if isinstance(text, str):
                check_text(text, index)
        except ValueError as error:
            raise ApiError(400, str(error), param="input", code="invalid_unicode") from None


def _frame(row: Row) -> int:
    """Return how many leading positions of a row are those of its prompt."""
    return next((i for i, segment in enumerate(row.segments) if segment not in FRAME), len(row.ids) - 1)


def _spans(template: Template, text: str, words: str, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Return the characters of a text that its tokens cover; none where it was tokenised in another way."""
    prepared, (before, after) = PREPARATIONS[template.preparation](text), template.around(words)
    repeated = "" if template.between is None else template.between + prepared
    beginning = prepared[: CHARACTERS * (len(ids) + 1)]  # a truncated text may be long, and is tokenised alone
    for rendered in (beginning, prepared + repeated + after, prepared):
        (encoding,) = template.encode([before + rendered], places=True)
        first = tokens_before(encoding, len(before)) if before else 0
        if encoding.ids[first : first + len(ids)] == ids:
            offsets = encoding.offsets[first : first + len(ids)]
            return [(max(0, a - len(before)), min(b - len(before), len(text))) for a, b in offsets]
    return []
