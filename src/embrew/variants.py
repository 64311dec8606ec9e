"""GenEOL: the embedding of a text is the mean over the text and variants of it that a language model writes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from embrew.encoder import Encoder
from embrew.model.encode_arguments import convert_vectors, options_of_side
from embrew.progress import progress
from embrew.recipe.encoder import Variants
from embrew.text.texts import Text


class VariantEncoder:
    """*GenEOL: Harnessing the Generative Power of LLMs for Training-Free Sentence Embeddings* (arXiv 2410.14635).

    A text's variants depend on the text, the settings and the seed, not on the batch. It embeds texts only: it is
    neither trained, saved nor exported.

    Attributes:
        encoder: encoder of a text and its variants, such as a PromptEOL encoder.
        generator: the language model that writes the variants, as an encoder that reads all of a prompt.
        settings: settings of sampling.
        seed: random seed of sampling.
        truncate_dim, prompts, default_prompt_name, tokenizer: as those of `Encoder`.
    """

    similarity_fn_name = "cosine"

    def __init__(self, encoder: Encoder, generator: Encoder, settings: Variants, *, seed: int) -> None:
        self.encoder, self.settings, self.seed = encoder, settings, seed
        self.truncate_dim: int | None = None
        self.prompts, self.default_prompt_name = encoder.prompts, encoder.default_prompt_name
        self.tokenizer = encoder.tokenizer
        self.generator = generator.with_settings(
            template="{text}",
            preparation="none",
            words_after=None,
            pooling="last",
            prompts={},
            default_prompt_name=None,
        )
        self._prompts = [self.generator.with_settings(template=prompt) for prompt in settings.prompts]
        self._then = self.generator.with_settings(template=settings.then) if settings.then else None
        self._raw = encoder.with_settings(normalize=False)

    def write(self, text: str) -> list[str]:
        """Return a text's variants, `per_prompt` for each prompt in turn; an empty one is the text itself."""
        key = json.dumps([self.seed, text]).encode()
        sampling: dict[str, Any] = {
            "source": "text", "do_sample": True, "temperature": self.settings.temperature, "top_p": self.settings.top_p,
            "top_k": 0, "max_new_tokens": self.settings.max_new_tokens,
        }  # fmt: skip
        device = self.generator.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(int.from_bytes(hashlib.blake2b(key, digest_size=7).digest(), "little"))
            count = self.settings.per_prompt
            parts = [generator.generate([text], num_return_sequences=count, **sampling) for generator in self._prompts]
            written = [_first_line(variant) or text for part in parts for variant in part]
            if self._then is not None:
                again = self._then.generate(written, **sampling)
                written = [_first_line(new) or old for new, old in zip(again, written, strict=True)]
        return written

    def encode(
        self,
        inputs: Text | Iterable[Text],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        show_progress_bar: bool | None = None,
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        **options: Any,
    ) -> np.ndarray | Tensor | list[Tensor]:
        """Embed texts: the mean over each text and its variants, before normalising; arguments as of `Encoder.encode`.

        Raises:
            ValueError: a text that is given as token ids; and as `Encoder.encode`.
        """
        texts, single = self.encoder.texts_of(inputs)
        versions = self._versions(texts, show_progress_bar=bool(show_progress_bar))
        every = [version for text in texts for version in versions[str(text)]]
        dim = self.truncate_dim if truncate_dim is None else truncate_dim
        keywords = {**options, "show_progress_bar": show_progress_bar, "truncate_dim": dim, "convert_to_tensor": True}
        vectors: Tensor = self._raw.encode(every, prompt_name, prompt, **keywords)  # type: ignore[assignment]
        size = 1 + len(self._prompts) * self.settings.per_prompt
        means = vectors.reshape(len(texts), size, -1).mean(1)
        if normalize_embeddings or self.encoder.settings.normalize:
            means = normalize(means, dim=-1)
        return convert_vectors(means, single, precision, convert_to_numpy, convert_to_tensor)

    def encode_query(
        self, inputs: Text | Iterable[Text], prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> np.ndarray | Tensor | list[Tensor]:
        """`encode` for queries: the prompt `query` and the queries' length limit, unless others are given."""
        return self.encode(inputs, **options_of_side("query", self.encoder.max_length, prompt_name, prompt, options))

    def encode_document(
        self, inputs: Text | Iterable[Text], prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> np.ndarray | Tensor | list[Tensor]:
        """`encode` for documents: the prompt `document` and the documents' length limit, unless others are given."""
        return self.encode(inputs, **options_of_side("document", self.encoder.max_length, prompt_name, prompt, options))

    def _versions(self, texts: Sequence[Text], *, show_progress_bar: bool) -> dict[str, list[str]]:
        """Return each text with its variants, by text."""
        ids = next((text for text in texts if not isinstance(text, str)), None)
        if ids is not None:
            raise ValueError(f"variants are written of strings; a text is given as {type(ids).__name__}: decode it")
        by_text: dict[str, list[str]] = {}
        strings = dict.fromkeys(text for text in texts if isinstance(text, str))
        with progress(len(strings), "rewrite", "text", show=show_progress_bar) as bar:
            for text in strings:
                by_text[text] = [text, *self.write(text)]
                bar.update(1)
        return by_text

    def describe(self) -> dict[str, Any]:
        """Return the encoder's description, and how variants are written, for result files."""
        written = {**self.settings.model_dump(mode="json"), "by": self.generator.base.name, "seed": self.seed}
        return {**self.encoder.describe(), "variants": written}

    def weights_hash(self) -> str:
        """Return sha256 of what decides the vectors: encoder, generator, settings and seed."""
        parts = self.encoder.weights_hash(), self.generator.weights_hash(), self.settings.model_dump(mode="json")
        return hashlib.sha256(json.dumps([*parts, self.seed], sort_keys=True).encode()).hexdigest()


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
