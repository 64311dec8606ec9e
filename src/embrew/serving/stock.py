"""A Sentence-Transformers model: strings go in, and its own `encode` computes the vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from embrew.serving.asked import Asked, Engine, Key, Read
from embrew.serving.engine import check_finite
from embrew.serving.errors import ApiError, text_too_long
from embrew.serving.wire import Text
from embrew.text.texts import SIDES, check_text
from embrew.text_encoder.hashes import model_hash
from embrew.text_encoder.interface import resolved_prompts

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class Prompted(NamedTuple):
    """A text and the prompt before it."""

    prompt: str
    text: str


class StockReader:
    """The text side: prompts, the limit and the tokenizer, which counts tokens.

    Args:
        model: the opened `SentenceTransformer`; it is not kept.
        default_prompt_name: prompt where a request names none.
    """

    def __init__(self, model: Any, *, default_prompt_name: str | None = None) -> None:
        self.tokenizer, self.limit = model.tokenizer, model.max_seq_length
        resolved = resolved_prompts(model)
        self.prompts: dict[str, str] = {**model.prompts, **{side: resolved[side] for side in SIDES}}
        self.default = default_prompt_name or model.default_prompt_name
        if default_prompt_name is not None and default_prompt_name not in self.prompts:
            raise ValueError(f"default_prompt_name={default_prompt_name!r}; this model has {self._names()}")
        kinds = [type(module).__name__ for module in model]
        self.about: dict[str, Any] = {
            "model_sha": model_hash(model),
            "model_dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
            "backend": "torch",
            "pooling": None,
            "normalize": "Normalize" in kinds,  # vectors of fewer dimensions too, as OpenAI and encoders do
            "always_normalizes": "Normalize" in kinds,
            "dimensions": model.get_embedding_dimension(),
            "num_layers": None,
            "prompts": self.prompts,
            "contexts": [],
            "default_prompt_name": self.default,
            "max_length": dict.fromkeys((*SIDES, "other"), self.limit),
        }

    def read(self, texts: list[Text], asked: Asked, *, first: int = 0) -> Read:
        """Return texts with their prompt, and their tokens counted."""
        if asked.num_layers is not None:
            raise ApiError(
                400, "num_layers: a Sentence-Transformers model runs all its layers; leave it out", param="num_layers"
            )
        prompt = self._prompt(asked)
        strings = [self._checked(text, place) for place, text in enumerate(texts, first)]
        counts = [
            len(ids)
            for ids in self.tokenizer([prompt + text for text in strings], truncation=False, verbose=False).input_ids
        ]
        limit = self.limit or max(counts)
        for place, count in enumerate(counts, first):
            if count > limit and not asked.truncate:
                raise text_too_long(place, count, limit)
        tokens = [min(count, limit) for count in counts]
        key = Key(prompt=prompt, states=asked.states)
        return Read(key, [Prompted(prompt, text) for text in strings], tokens, tokens)

    def tokenize(self, text: Text, asked: Asked, *, add_special_tokens: bool) -> list[dict[str, Any]]:
        """Return the tokens of a text with its prompt."""
        prompt = self._prompt(asked)
        given = prompt + self._checked(text, 0)
        encoded = self.tokenizer(
            given,
            add_special_tokens=add_special_tokens,
            truncation=True,
            max_length=self.limit,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
        )
        names = self.tokenizer.convert_ids_to_tokens(encoded.input_ids)
        places = [
            (a - len(prompt), b - len(prompt)) if b > len(prompt) else (None, None) for a, b in encoded.offset_mapping
        ]
        return [
            {"id": i, "text": name or "", "special": bool(special), "start": start, "stop": stop}
            for i, name, special, (start, stop) in zip(
                encoded.input_ids, names, encoded.special_tokens_mask, places, strict=True
            )
        ]

    def _prompt(self, asked: Asked) -> str:
        if asked.prompt is not None:
            return asked.prompt
        name = asked.prompt_name or asked.side or self.default
        if name is not None and name not in self.prompts:
            raise ApiError(
                400, f"prompt_name={name!r}; this model has {self._names()}", param="prompt_name", code="unknown_prompt"
            )
        return "" if name is None else self.prompts[name]

    def _names(self) -> str:
        return ", ".join(sorted(self.prompts))

    @staticmethod
    def _checked(text: Text, place: int) -> str:
        if not isinstance(text, str):
            raise ApiError(
                400,
                "token ids: a Sentence-Transformers model reads strings only; serve the encoder that it was made of",
                param="input",
            )
        try:
            check_text(text, place)
        except ValueError as error:
            raise ApiError(400, str(error), param="input") from None
        return text


class StockEngine(Engine):
    """The computing side: `SentenceTransformer.encode`."""

    def __init__(self, model: SentenceTransformer) -> None:
        self.model: Any = model

    def compute(self, key: Key, rows: Sequence[Prompted]) -> list[np.ndarray]:
        """Return float32 `(1, dimensions)` per text, or the states of its tokens."""
        output = "token_embeddings" if key.states else "sentence_embedding"
        found = self.model.encode(
            [row.text for row in rows],
            prompt=key.prompt,
            output_value=output,
            show_progress_bar=False,
            convert_to_numpy=not key.states,
        )
        if key.states:
            return check_finite([states.float().cpu().numpy() for states in found])
        return check_finite(list(np.asarray(found, dtype=np.float32)[:, None]))

    def counts(self) -> dict[str, int]:
        """Return zeros: prefixes are not kept."""
        return {"prefix_hits": 0, "prefix_misses": 0, "prefix_bytes": 0}
