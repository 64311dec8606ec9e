"""Models as the server runs them: texts to tokens, tokens to vectors or states."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import torch

from embrew.encoder import Encoder
from embrew.model.batching import NotFinite, batches_of, default_batch_tokens
from embrew.model.contexts import PreparedContext
from embrew.model.prefix import PrefixCache, shared_prefix
from embrew.runtimes.openvino_encoder import OpenVINOEncoder
from embrew.serving.errors import ApiError
from embrew.serving.schemas import Side, Text
from embrew.serving.settings import Settings
from embrew.text.template import Template, tokens_before
from embrew.text.texts import PREPARATIONS, SIDES
from embrew.text.tokens import Row, Segment, Tokens
from embrew.text_encoder import model_hash, resolved_prompts

CHARACTERS = 32  # of a long text, per token that is kept of it
TokenFields = dict[str, str | int | None]  # of `schemas.Token`
NOT_FINITE = "a NaN or infinite embedding; the model's weights are broken"


@dataclass(frozen=True)
class ReadOptions:
    """How the texts of a request are read.

    Attributes:
        side: side whose prompt and length limit are used; None: those of `encode`.
        prompt_name: name of a prompt or context.
        prompt: words of the prompt, which take precedence.
        model: name of the model; None: there is one.
        truncate: whether texts beyond the limit are truncated, or refused.
        num_layers: number of layers to run; None: all.
        states: whether the states of all tokens are returned, and not one vector per text.
    """

    side: Side | None = None
    prompt_name: str | None = None
    prompt: str | None = None
    model: str | None = None
    truncate: bool = True
    num_layers: int | None = None
    states: bool = False


@dataclass(frozen=True)
class Key:
    """What texts must have in common to share a forward pass.

    Attributes:
        context: name of the context; None: there is none.
        prompt: words of a prompt whose keys and values are computed once; else "".
        num_layers: number of layers to run; None: all.
        states: whether the states of all tokens are returned.
        model: object that computes them; None: the only model of the service.
    """

    context: str | None = None
    prompt: str = ""
    num_layers: int | None = None
    states: bool = False
    model: Any = None


@dataclass(frozen=True)
class TokenizedTexts:
    """The texts of a request, tokenised.

    Attributes:
        key: key of the texts that they share a forward pass with.
        rows: input of the model per text.
        tokens: number of positions that the model reads, per text.
        work: number of these that are computed for the text alone, per text.
    """

    key: Key
    rows: Sequence[Any]
    tokens: Sequence[int]
    work: Sequence[int]


class Description(TypedDict):
    """A served model, as `/info` describes it.

    Attributes:
        model_sha: hash of the weights.
        model_dtype: data type of the weights.
        backend: `torch` or `openvino`.
        pooling: pooling of an encoder; None: a Sentence-Transformers model.
        normalize: whether vectors are normalised unless a request says otherwise.
        always_normalizes: whether the model itself normalises them.
        dimensions: number of dimensions.
        num_layers: number of layers; None: fewer cannot be run.
        prompts: prompts by name.
        contexts: names of contexts.
        default_prompt_name: name of the prompt where a request names none.
        max_length: length limit in tokens of queries, documents, and `other` texts; None: there is none.
    """

    model_sha: str
    model_dtype: str
    backend: str
    pooling: dict[str, Any] | None
    normalize: bool
    always_normalizes: bool
    dimensions: int
    num_layers: int | None
    prompts: dict[str, str]
    contexts: list[str]
    default_prompt_name: str | None
    max_length: dict[str, int | None]


class ServedEncoder:
    """An encoder: one thread calls `read` and `tokenize`, another one `compute`.

    Args:
        encoder: encoder to serve.
        settings: settings of the server.

    Attributes:
        about: description of the model, for `/info`.
        batch_tokens: number of padded tokens per forward pass.
        prefix: keys and values of prompts.
    """

    def __init__(self, encoder: Encoder, settings: Settings) -> None:
        self.encoder = encoder
        self.converted = isinstance(encoder, OpenVINOEncoder)
        self.default = settings.default_prompt_name
        if self.default is not None:
            encoder.resolve_prompt(self.default, None)
        self.batch_tokens = settings.max_batch_tokens or default_batch_tokens(encoder.device)
        self._stack = ExitStack()  # never closed: a served model does not change
        self.prefix = self._stack.enter_context(encoder.fixed())
        self.prefix.max_bytes = settings.prefix_bytes
        description = encoder.describe()
        self.about: Description = {
            "model_sha": encoder.weights_hash(),
            "model_dtype": description["dtype"],
            "backend": description.get("backend", "torch"),
            "pooling": description["pooling"],
            "normalize": encoder.normalize,
            "always_normalizes": isinstance(encoder, OpenVINOEncoder) and encoder.normalizes,
            "dimensions": encoder.get_embedding_dimension(),
            "num_layers": None if self.converted else encoder.backbone.num_layers,
            "prompts": dict(encoder.prompts),
            "contexts": sorted(encoder.contexts),
            "default_prompt_name": self.default or encoder.default_prompt_name,
            "max_length": {**encoder.max_length, "other": encoder.max_seq_length},
        }

    def read(self, texts: list[Text], options: ReadOptions) -> TokenizedTexts:
        """Return the rows of texts.

        Raises:
            ApiError: an unknown prompt, a number of layers that is not there, token ids out of range, or a text that is
                too long.
        """
        self._check(options)
        name, words, context, limit = self._resolve(options)
        rows = self._rows(texts, options, words, context, limit if options.truncate else None)
        if not options.truncate:
            extra = 0 if context is None else len(context.row.ids)
            check_lengths([max(len(row.ids) for row in by_template) for by_template in rows], limit + extra)
        keeps = self.encoder.shares_prefixes and not options.states
        shared = shared_prefix(rows[0][:1]) if keeps else 0
        depth = None if options.num_layers == self.encoder.backbone.num_layers else options.num_layers
        key = Key(name if context is not None else None, words if shared else "", depth, options.states)
        tokens = [sum(len(row.ids) for row in by_template) for by_template in rows]
        return TokenizedTexts(key, rows, tokens, [max(1, count - shared * len(rows[0])) for count in tokens])

    def tokenize(self, text: Text, options: ReadOptions, *, special: bool) -> list[TokenFields]:
        """Return the tokens of a text, of its row, or of the text alone."""
        self._check(options)
        _, words, context, limit = self._resolve(options)
        (row, *_), *_ = self._rows([text], options, words, context, limit)
        template = self.encoder.template
        ids = [i for i, segment in zip(row.ids, row.segments, strict=True) if segment == Segment.TEXT]
        spans = iter(_spans(template, text, words, ids) if isinstance(text, str) else [])
        tokens = list[TokenFields]()
        names = template.tokenizer.convert_ids_to_tokens(row.ids)
        for i, name, segment in zip(row.ids, names, row.segments, strict=True):
            is_special = segment != Segment.TEXT
            start, stop = (None, None) if is_special else next(spans, (None, None))
            if special or not is_special:
                tokens.append({"id": i, "text": name or "", "special": is_special, "start": start, "stop": stop})
        return tokens

    def compute(self, key: Key, rows: Sequence[Sequence[Row]]) -> list[np.ndarray]:
        """Return float32 `(templates, dimensions)` per text, neither truncated nor normalised; or its states."""
        context = None if key.context is None else self.encoder.contexts[key.context]
        if key.states:
            return self._states(key, [by_template[0] for by_template in rows], context)
        try:
            parts = [
                self.encoder.embed_rows(
                    lambda start, stop, template_rows=template_rows: list(template_rows[start:stop]),  # type: ignore[misc]
                    len(template_rows),
                    context=context,
                    num_layers=key.num_layers,
                    batch_size=None,
                    batch_tokens=self.batch_tokens,
                )
                for template_rows in zip(*rows, strict=True)
            ]
        except NotFinite:  # its text is named by its index in the batch, which says nothing to a client
            raise ValueError(NOT_FINITE) from None
        return list(torch.stack(parts, dim=1).numpy())

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

    def _check(self, options: ReadOptions) -> None:
        depth, layers = options.num_layers, self.encoder.backbone.num_layers
        if options.prompt and not any("{instruction}" in template.pattern for template in self.encoder.templates):
            reason = "this model's template has no place for a prompt, and would ignore it; leave it out"
            raise ApiError(400, f"prompt: {reason}", param="prompt", code="not_offered")
        whole = self.converted or self.encoder.center is not None
        if depth is not None and (depth > layers or (whole and depth < layers)):
            runs = "OpenVINO runs all" if self.converted else "this model has"
            runs = "the mean that this model subtracts is that of its" if whole and not self.converted else runs
            raise ApiError(400, f"num_layers={depth}; {runs} {layers} layers", param="num_layers")
        if options.states and (self.converted or len(self.encoder.templates) > 1):
            reason = "OpenVINO computes pooled vectors only" if self.converted else "this model has several templates"
            raise ApiError(400, f"states of tokens are not offered: {reason}; use /embed", code="not_offered")

    def _rows(
        self,
        texts: list[Text],
        options: ReadOptions,
        words: str,
        context: PreparedContext | None,
        limit: int | None,
    ) -> list[list[Row]]:
        try:
            self.encoder.texts_of(texts)
        except ValueError as error:
            raise ApiError(422, str(error), param="input", code="token_id_out_of_range") from None
        try:
            return self.encoder.rows_by_text(texts, words, context, limit)
        except ValueError:  # nothing else is left that can be wrong
            field = "prompt_name" if options.prompt is None else "prompt"
            message = f"the prompt leaves no room for a text within {limit} tokens; shorten it"
            raise ApiError(400, message, param=field, code="prompt_too_long") from None

    def _resolve(self, options: ReadOptions) -> tuple[str | None, str, PreparedContext | None, int]:
        """Return name and words of the prompt, the context, and the limit without the context's tokens."""
        encoder, name = self.encoder, options.prompt_name
        if name is None and options.prompt is None and options.side is None:
            name = self.default
        side = options.side or (name if name in SIDES else None)
        if name is None and options.prompt is None:
            name = side
        limit = encoder.max_seq_length if side is None else encoder.max_length[side]
        try:
            return name or encoder.default_prompt_name, *encoder.resolve_prompt(name, options.prompt), limit
        except ValueError as error:
            raise ApiError(400, str(error), param="prompt_name", code="unknown_prompt") from None


class ServedStock:
    """A Sentence-Transformers model; arguments, attributes and methods as of `ServedEncoder`."""

    def __init__(self, model: Any, settings: Settings) -> None:
        self.model, self.limit = model, model.max_seq_length
        self.tokenizer = copy.deepcopy(model.tokenizer)  # not that of `encode`, which another thread calls
        self.batch_tokens = settings.max_batch_tokens or default_batch_tokens(model.device)
        self.prefix = PrefixCache()  # stays empty
        resolved = resolved_prompts(model)
        self.prompts: dict[str, str] = {**model.prompts, **{side: resolved[side] for side in SIDES}}
        self.names = ", ".join(sorted(self.prompts))
        self.default = settings.default_prompt_name or model.default_prompt_name
        if settings.default_prompt_name is not None and self.default not in self.prompts:
            raise ValueError(f"default_prompt_name={self.default!r}; this model has {self.names}")
        normalizes = any(type(module).__name__ == "Normalize" for module in model)
        self.about: Description = {
            "model_sha": model_hash(model),
            "model_dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
            "backend": "torch",
            "pooling": None,
            "normalize": normalizes,  # vectors of fewer dimensions too, as OpenAI and encoders do
            "always_normalizes": normalizes,
            "dimensions": model.get_embedding_dimension(),
            "num_layers": None,
            "prompts": self.prompts,
            "contexts": [],
            "default_prompt_name": self.default,
            "max_length": dict.fromkeys((*SIDES, "other"), self.limit),
        }

    def read(self, texts: list[Text], options: ReadOptions) -> TokenizedTexts:
        """Return texts, and the number of their tokens with the prompt."""
        if options.num_layers is not None:
            reason = "a Sentence-Transformers model runs all its layers; leave it out"
            raise ApiError(400, f"num_layers: {reason}", param="num_layers")
        prompt, strings = self._prompt(options), _strings(texts)
        encoded = self.tokenizer([prompt + text for text in strings], truncation=False, verbose=False)
        counts = [len(ids) for ids in encoded.input_ids]
        limit = self.limit or max(counts)
        if not options.truncate:
            check_lengths(counts, limit)
        tokens = [min(count, limit) for count in counts]
        return TokenizedTexts(Key(prompt=prompt, states=options.states), strings, tokens, tokens)

    def tokenize(self, text: Text, options: ReadOptions, *, special: bool) -> list[TokenFields]:
        """Return the tokens of a text with its prompt."""
        prompt, (string,) = self._prompt(options), _strings([text])
        encoded = self.tokenizer(
            prompt + string,
            add_special_tokens=special,
            truncation=True,
            max_length=self.limit,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
        )
        names = self.tokenizer.convert_ids_to_tokens(encoded.input_ids)
        tokens = list[TokenFields]()
        columns = encoded.input_ids, names, encoded.special_tokens_mask, encoded.offset_mapping
        for i, name, is_special, (a, b) in zip(*columns, strict=True):
            start, stop = (a - len(prompt), b - len(prompt)) if b > len(prompt) else (None, None)
            tokens.append({"id": i, "text": name or "", "special": bool(is_special), "start": start, "stop": stop})
        return tokens

    def _prompt(self, options: ReadOptions) -> str:
        if options.prompt is not None:
            return options.prompt
        name = options.prompt_name or options.side or self.default
        if name is not None and name not in self.prompts:
            message = f"prompt_name={name!r}; this model has {self.names}"
            raise ApiError(400, message, param="prompt_name", code="unknown_prompt")
        return "" if name is None else self.prompts[name]

    def compute(self, key: Key, rows: Sequence[str]) -> list[np.ndarray]:
        """Return float32 `(1, dimensions)` per text, or the states of its tokens."""
        output = "token_embeddings" if key.states else "sentence_embedding"
        options = {"prompt": key.prompt, "output_value": output, "convert_to_numpy": not key.states}
        results = self.model.encode(list(rows), show_progress_bar=False, **options)
        if key.states:
            return check_finite([states.float().cpu().numpy() for states in results])
        return check_finite(list(np.asarray(results, dtype=np.float32)[:, None]))


def _strings(texts: list[Text]) -> list[str]:
    strings = [text for text in texts if isinstance(text, str)]
    if len(strings) < len(texts):
        reason = "a Sentence-Transformers model reads strings only; serve the encoder that it was made of"
        raise ApiError(400, f"token ids: {reason}", param="input")
    return strings


def check_lengths(lengths: Sequence[int], limit: int) -> None:
    """Raise if a text that must not be truncated is too long."""
    for index, tokens in enumerate(lengths):
        if tokens > limit:
            message = f"text {index} has {tokens} tokens with its template and prompt; at most {limit} are allowed"
            message += ": shorten it, or set truncate to true"
            raise ApiError(422, message, param="input", code="text_too_long")


def check_finite(results: list[np.ndarray]) -> list[np.ndarray]:
    """Return results whose values are all finite.

    Raises:
        ValueError: one is not.
    """
    if not all(np.isfinite(result).all() for result in results):
        raise ValueError(NOT_FINITE)
    return results


def _spans(template: Template, text: str, words: str, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Return the characters of a text that its tokens cover; none where it was tokenised in another way."""
    prepared, (before, after) = PREPARATIONS[template.preparation](text), template.around(words)
    repeated = "" if template.between is None else template.between + prepared
    beginning = prepared[: CHARACTERS * (len(ids) + 1)]  # a truncated text may be long, and is tokenised alone
    for rendered in (beginning, prepared + repeated + after, prepared):
        (encoding,) = template.encode([before + rendered], offsets=True)
        first = tokens_before(encoding, len(before)) if before else 0
        if encoding.ids[first : first + len(ids)] == ids:
            offsets = encoding.offsets[first : first + len(ids)]
            return [(max(0, a - len(before)), min(b - len(before), len(text))) for a, b in offsets]
    return []
