"""A Sentence-Transformers model as the server runs it: its own `encode` computes the vectors of strings."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from embrew.model.batching import usual_tokens
from embrew.model.prefix import Prefix
from embrew.serving.errors import ApiError
from embrew.serving.reading import Key, ReadOptions, TokenizedTexts, check_finite, check_lengths
from embrew.serving.schemas import Text
from embrew.serving.settings import Settings
from embrew.text.texts import SIDES
from embrew.text_encoder.hashes import model_hash
from embrew.text_encoder.interface import resolved_prompts


class ServedStock:
    """A Sentence-Transformers model; arguments, attributes and methods as of `ServedEncoder`."""

    def __init__(self, model: Any, settings: Settings) -> None:
        self.model, self.limit = model, model.max_seq_length
        self.tokenizer = copy.deepcopy(model.tokenizer)  # not that of `encode`, which another thread calls
        self.batch_tokens = settings.max_batch_tokens or usual_tokens(model.device)
        self.prefix = Prefix()  # stays empty
        resolved = resolved_prompts(model)
        self.prompts: dict[str, str] = {**model.prompts, **{side: resolved[side] for side in SIDES}}
        self.names = ", ".join(sorted(self.prompts))
        self.default = settings.default_prompt_name or model.default_prompt_name
        if settings.default_prompt_name is not None and self.default not in self.prompts:
            raise ValueError(f"default_prompt_name={self.default!r}; this model has {self.names}")
        normalizes = any(type(module).__name__ == "Normalize" for module in model)
        self.about: dict[str, Any] = {
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

    def read(self, texts: list[Text], options: ReadOptions, *, first: int = 0) -> TokenizedTexts:
        """Return texts, and the number of their tokens with the prompt."""
        if options.num_layers is not None:
            reason = "a Sentence-Transformers model runs all its layers; leave it out"
            raise ApiError(400, f"num_layers: {reason}", param="num_layers")
        prompt, strings = self._prompt(options), _strings(texts)
        encoded = self.tokenizer([prompt + text for text in strings], truncation=False, verbose=False)
        counts = [len(ids) for ids in encoded.input_ids]
        limit = self.limit or max(counts)
        if not options.truncate:
            check_lengths(counts, limit, first)
        tokens = [min(count, limit) for count in counts]
        return TokenizedTexts(Key(prompt=prompt, states=options.states), strings, tokens, tokens)

    def tokenize(self, text: Text, options: ReadOptions, *, special: bool) -> list[dict[str, Any]]:
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
        tokens = []
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
