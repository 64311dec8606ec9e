"""The text side of an encoder: prompts, contexts, limits and tokens, without weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from embrew.encoder import Encoder
from embrew.encoding import rows_by_text
from embrew.model.contexts import PreparedContext
from embrew.model.prefix import FRAME, WORTHWHILE
from embrew.runtimes.converted import shape_of
from embrew.runtimes.encoder import RuntimeEncoder
from embrew.serving.asked import Asked, Key, Read
from embrew.serving.errors import ApiError, text_too_long
from embrew.serving.wire import Text
from embrew.text.template import Template, tokens_before
from embrew.text.texts import PREPARATIONS, SIDES, check_text
from embrew.text.tokens import Row, Segment

CHARACTERS = 32  # of a long text, per token that is kept of it


class EncoderReader(Encoder):
    """An encoder's text side.

    Args:
        encoder: the encoder, which is not kept.
        default_prompt_name: prompt or context where a request names none.
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
        self.about = {
            **_describe(encoder),
            "normalize": encoder.normalize,
            "always_normalizes": self.converted and encoder.normalizes,
            "dimensions": encoder.get_embedding_dimension(),
            "num_layers": None if self.converted else encoder.backbone.num_layers,
            "prompts": dict(encoder.prompts),
            "contexts": sorted(encoder.contexts),
            "default_prompt_name": default_prompt_name or encoder.default_prompt_name,
            "max_length": {**encoder.max_length, "other": encoder.max_seq_length},
        }

    def read(self, texts: list[Text], asked: Asked, *, first: int = 0) -> Read:
        """Return the rows of texts, and the key of what they share a forward pass with.

        Raises:
            ApiError: an unknown prompt, a number of layers that is not there, invalid Unicode, token ids out of range,
                or a text that is too long.
        """
        self._check(asked)
        given = self._checked(texts, first)
        name, words, context, limit = self._resolved(asked)
        rows = self._rows_of(given, asked, words, context, limit if asked.truncate else None)
        extra = 0 if context is None else len(context.row.ids)
        if not asked.truncate:
            _check_lengths(rows, limit + extra, first)
        shared = _frame(rows[0][0]) if self.causal and not asked.states else 0
        shared = shared if shared >= WORTHWHILE else 0
        depth = None if asked.num_layers == self.backbone.num_layers else asked.num_layers
        key = Key(name if context is not None else None, words if shared else "", depth, asked.states)
        tokens = [sum(len(row.ids) for row in each) for each in rows]
        return Read(key, rows, tokens, [max(1, count - shared * len(rows[0])) for count in tokens])

    def tokenize(self, text: Text, asked: Asked, *, add_special_tokens: bool) -> list[dict[str, Any]]:
        """Return the tokens of a text: of its row, or of the text alone."""
        self._check(asked)
        (text,) = self._checked([text], 0)
        _, words, context, limit = self._resolved(asked)
        (row, *_), *_ = self._rows_of([text], asked, words, context, limit)
        found = _tokens(self.template, text, words, row)
        if add_special_tokens:
            return found
        return [token for token, segment in zip(found, row.segments, strict=True) if segment == Segment.TEXT]

    def _check(self, asked: Asked) -> None:
        if asked.prompt and not any("{instruction}" in template.pattern for template in self.templates):
            said = "this model's template has no place for a prompt, and would ignore it; leave it out"
            raise ApiError(400, f"prompt: {said}", param="prompt", code="not_offered")
        layers = self.backbone.num_layers
        if asked.num_layers is not None and asked.num_layers != layers and self.converted:
            raise ApiError(
                400, f"num_layers={asked.num_layers}: OpenVINO runs all {layers} layers of a model", param="num_layers"
            )
        if asked.num_layers is not None and asked.num_layers > layers:
            raise ApiError(400, f"num_layers={asked.num_layers}; this model has {layers} layers", param="num_layers")
        if asked.states and (self.converted or len(self.templates) > 1):
            why = "OpenVINO computes pooled vectors only" if self.converted else "this model has several templates"
            raise ApiError(400, f"states of tokens are not offered: {why}; use /embed", code="not_offered")

    def _checked(self, texts: list[Text], first: int) -> list[Any]:
        try:
            found = self.texts_of(texts, first=first)[0]
        except ValueError as error:
            raise ApiError(422, str(error), param="input", code="token_id_out_of_range") from None
        try:
            for place, text in enumerate(found, first):
                if isinstance(text, str):
                    check_text(text, place)
        except ValueError as error:
            raise ApiError(400, str(error), param="input", code="invalid_unicode") from None
        return found

    def _rows_of(
        self, texts: list[Any], asked: Asked, words: str, context: PreparedContext | None, limit: int | None
    ) -> list[list[Row]]:
        try:
            return rows_by_text(self, texts, words, context, limit)
        except ValueError:  # nothing else is left that can be wrong
            named = "prompt_name" if asked.prompt is None else "prompt"
            raise ApiError(
                400,
                f"the prompt leaves no room for a text within {limit} tokens; shorten it",
                param=named,
                code="prompt_too_long",
            ) from None

    def _resolved(self, asked: Asked) -> tuple[str | None, str, PreparedContext | None, int]:
        """Return name and words of the prompt, the context, and the limit without the context's tokens."""
        name = asked.prompt_name
        if name is None and asked.prompt is None and asked.side is None:
            name = self.default
        side = asked.side or (name if name in SIDES else None)
        if name is None and asked.prompt is None:
            name = side
        limit = self.max_seq_length if side is None else self.max_length[side]
        try:
            return name or self.default_prompt_name, *self.resolve_prompt(name, asked.prompt), limit
        except ValueError as error:
            raise ApiError(400, str(error), param="prompt_name", code="unknown_prompt") from None


def _describe(encoder: Encoder) -> dict[str, Any]:
    about = encoder.describe()
    return {
        "model_sha": encoder.weights_hash(),
        "model_dtype": about["dtype"],
        "backend": about.get("backend", "torch"),
        "pooling": about["pooling"],
    }


def _check_lengths(rows: Sequence[Sequence[Row]], limit: int, first: int) -> None:
    for place, each in enumerate(rows, first):
        longest = max(len(row.ids) for row in each)
        if longest > limit:
            raise text_too_long(place, longest, limit)


def _frame(row: Row) -> int:
    """Return how many leading positions of a row are those of its prompt."""
    return next((i for i, segment in enumerate(row.segments) if segment not in FRAME), len(row.ids) - 1)


def _tokens(template: Template, text: Text, words: str, row: Row) -> list[dict[str, Any]]:
    """Return the tokens of a row, with the characters of the text where the text is tokenised with its prompt."""
    of_text = [i for i, segment in zip(row.ids, row.segments, strict=True) if segment == Segment.TEXT]
    places = iter(_places(template, text, words, of_text) if isinstance(text, str) else [])
    names = template.tokenizer.convert_ids_to_tokens(row.ids)
    found = []
    for i, name, segment in zip(row.ids, names, row.segments, strict=True):
        start, stop = next(places, (None, None)) if segment == Segment.TEXT else (None, None)
        found.append({"id": i, "text": name or "", "special": segment != Segment.TEXT, "start": start, "stop": stop})
    return found


def _places(template: Template, text: str, words: str, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Return the characters of a text that its tokens cover; none where it was tokenised in another way."""
    prepared, (before, after) = PREPARATIONS[template.preparation](text), template.around(words)
    repeated = "" if template.between is None else template.between + prepared
    beginning = prepared[: CHARACTERS * (len(ids) + 1)]  # a truncated text may be long, and is tokenised alone
    found = (beginning, prepared + repeated + after, prepared)
    for rendered in found if len(beginning) < len(prepared) else found[1:]:
        (encoding,) = template.encode([before + rendered], places=True)
        first = tokens_before(encoding, len(before)) if before else 0
        if encoding.ids[first : first + len(ids)] == ids:
            offsets = encoding.offsets[first : first + len(ids)]
            return [(max(0, a - len(before)), min(b - len(before), len(text))) for a, b in offsets]
    return []
