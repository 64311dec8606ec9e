"""Embeddings of texts, by the methods of Sentence-Transformers 6."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from embrew import identity
from embrew.model.backbone import Backbone
from embrew.model.base import Base
from embrew.model.batching import convert
from embrew.model.contexts import PreparedContext
from embrew.row_embedder import RowEmbedder
from embrew.settings.encoder import EncoderSettings
from embrew.text.inputs import Text, texts_of
from embrew.text.numbers import SIDES, flag, whole

logger = logging.getLogger(__name__)
MTEB = ("task_metadata", "hf_split", "hf_subset", "prompt_type")
"""Keywords of mteb's calls of `encode`."""
PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")


class Embedder(RowEmbedder):
    """An embedding model with prompts: texts go in, vectors come out.

    Attributes:
        contexts: prompts with demonstrations, by name; `encode` takes these names as it does those of `prompts`.
    """

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: PreTrainedTokenizerBase,
        base: Base,
        settings: EncoderSettings | None = None,
        **given: Any,
    ) -> None:
        super().__init__(backbone, tokenizer, base, settings, **given)
        self.contexts: dict[str, PreparedContext] = {}

    def instruction(self, prompt_name: str | None = None, prompt: str | None = None) -> str:
        """Return what fills `{instruction}`: the prompt itself, one by name, that of a context, or the default one."""
        return self.asked(prompt_name, prompt)[0]

    def context(self, prompt_name: str | None = None, prompt: str | None = None) -> PreparedContext | None:
        """Return the context of a prompt name, or of the default one; None: it is a plain prompt."""
        name = self.default_prompt_name if prompt_name is None else prompt_name
        return None if prompt is not None or name is None else self.contexts.get(name)

    def asked(self, prompt_name: str | None, prompt: str | None) -> tuple[str, PreparedContext | None]:
        """Return `instruction` and `context` together, since another thread may replace the context."""
        for what, value in (("prompt", prompt), ("prompt_name", prompt_name)):
            if not isinstance(value, str | None):
                raise TypeError(f"{what}={value!r} is a {type(value).__name__}; give a string")
        if prompt is not None:
            return prompt, None
        name = self.default_prompt_name if prompt_name is None else prompt_name
        if name is None:
            return "", None
        context = self.contexts.get(name)
        if context is not None:
            return context.context.instruction, context
        if name not in self.prompts:
            names = ", ".join(sorted([*self.prompts, *self.contexts]))
            raise ValueError(f"prompt_name={name!r}; this encoder has {names}")
        return self.prompts[name], None

    def texts_of(self, inputs: Any, *, first: int = 0) -> tuple[list[Text], bool]:
        """Return texts as a list, and whether a single one was given; see `text.inputs`."""
        learned = len(self.backbone.memory_ids) + len(self.backbone.soft_prompt_ids)
        return texts_of(inputs, vocabulary=self.backbone.vocab_size + learned, first=first)

    def encode(
        self,
        inputs: Text | Iterable[Text],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | torch.device | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: None = None,
        chunk_size: None = None,
        *,
        num_layers: int | None = None,
        batch_tokens: int | None = None,
        max_length: int | None = None,
        **mteb: Any,
    ) -> np.ndarray | Tensor | list[Tensor]:
        """Embed texts; arguments as in Sentence-Transformers 6, followed by four of embrew.

        Args:
            inputs: a text or several: a list, an array, a Series, a generator, … (`text.inputs`); a text
                may also be a list of token ids. Empty texts are embedded like any other (see `Pooling` for what a
                text without tokens gives).
            prompt_name: name of a stored prompt that fills `{instruction}`, or of a context, whose demonstrations
                precede the text.
            prompt: the prompt itself; wins over `prompt_name`.
            batch_size: texts per batch, where `batch_tokens` is not given; None: batches by tokens.
            show_progress_bar: show one; by default only at log level INFO or below.
            output_value: only `sentence_embedding`.
            precision: `float32` or None; `int8`, `uint8`, `binary`, `ubinary` as Sentence-Transformers quantises.
            convert_to_numpy: an array; otherwise a list of tensors.
            convert_to_tensor: one tensor; wins over `convert_to_numpy`.
            device: move the encoder there first.
            normalize_embeddings: unit length, also where the encoder itself does not normalise.
            truncate_dim: number of leading dimensions to keep, before normalising.
            pool: not offered; run one process per device.
            chunk_size: not offered, as `pool`.
            num_layers: number of layers to run.
            batch_tokens: budget of padded tokens per batch, instead of `batch_size`; where neither is given, 2,048 on
                a CPU and 16,384 on a GPU.
            max_length: limit in tokens, instead of the longer of the encoder's two.
            **mteb: keywords of mteb's calls: `inputs` are then its batches, and `prompt_type` decides on prompt
                and limit.

        Returns:
            Float32 `(texts, dimensions)`, or `(dimensions,)` for a single text.

        Raises:
            ValueError: an unknown prompt name, invalid Unicode, a non-finite embedding, an option not offered.
            TypeError: something that is not text, or an option of another type.
        """
        if mteb:
            inputs, prompt_name, max_length = self._of_mteb(inputs, prompt_name, max_length, mteb)
        if output_value != "sentence_embedding":
            raise ValueError(f"output_value={output_value!r}; only sentence_embedding (use hidden_states for tokens)")
        if pool is not None or chunk_size is not None:
            raise ValueError("pool and chunk_size are not offered; run one process per device")
        precision = "float32" if precision is None else precision
        if precision not in PRECISIONS:
            raise ValueError(f"precision={precision!r}; choose from {', '.join(PRECISIONS)}")
        whole("batch_size", batch_size)
        whole("batch_tokens", batch_tokens)
        whole("num_layers", num_layers, most=self.backbone.num_layers)
        limit = whole("max_length", max_length, most=self.backbone.max_positions) or self.max_seq_length
        keep = self.get_embedding_dimension() if truncate_dim is None else truncate_dim
        keep = whole("truncate_dim", keep, most=self.width) or self.width
        unit = flag("normalize_embeddings", normalize_embeddings) or self.normalize
        as_numpy, as_tensor = flag("convert_to_numpy", convert_to_numpy), flag("convert_to_tensor", convert_to_tensor)
        shown = logger.isEnabledFor(logging.INFO) if show_progress_bar is None else show_progress_bar
        shown = flag("show_progress_bar", shown)
        texts, single = self.texts_of(inputs)
        instruction, context = self.asked(prompt_name, prompt)
        if device is not None:
            self.to(torch.device(device))
        if self.training:
            self.eval()
        options: dict[str, Any] = {"context": context, "num_layers": num_layers, "batch_size": batch_size}
        options |= {"batch_tokens": batch_tokens, "show_progress_bar": shown, "keep": keep}
        parts = [
            self._embed(
                partial(self._rows, template, texts, instruction, limit, context),
                len(texts),
                unit=unit and len(self.templates) == 1,
                **options,
            )
            for template in self.templates
        ]
        vectors = parts[0] if len(parts) == 1 else torch.stack(parts).mean(0)
        if unit and len(parts) > 1:
            vectors = nn.functional.normalize(vectors, dim=-1)
        return convert(vectors, single, precision, as_numpy, as_tensor)

    def encode_query(
        self, inputs: Text | Iterable[Text], prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Any:
        """`encode` for queries: the prompt `query` and the queries' length limit, unless others are given."""
        options["max_length"] = self.max_length["query"] if options.get("max_length") is None else options["max_length"]
        name = "query" if prompt_name is None and prompt is None else prompt_name
        return self.encode(inputs, name, prompt, **options)

    def encode_document(
        self, inputs: Text | Iterable[Text], prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Any:
        """`encode` for documents: the prompt `document` and the documents' length limit, unless others are given."""
        options["max_length"] = (
            self.max_length["document"] if options.get("max_length") is None else options["max_length"]
        )
        name = "document" if prompt_name is None and prompt is None else prompt_name
        return self.encode(inputs, name, prompt, **options)

    def describe(self) -> dict[str, Any]:
        """Return base, settings, dtype and size, for result files."""
        return identity.describe(self)

    def weights_hash(self) -> str:
        """Return sha256 of what decides the vectors: base, settings, memory tokens, adapters, trained weights."""
        return identity.weights_hash(self)

    def _of_mteb(
        self, inputs: Any, prompt_name: str | None, max_length: int | None, given: Mapping[str, Any]
    ) -> tuple[list[str], str | None, int | None]:
        """Return texts of mteb's batches, and the prompt name and length limit of their side.

        Raises:
            TypeError: keywords that are not mteb's.
        """
        unknown = next((name for name in given if name not in MTEB), None)
        if unknown is not None:
            raise TypeError(f"encode() got an unexpected keyword argument {unknown!r}")
        side = getattr(given.get("prompt_type"), "value", given.get("prompt_type"))
        if side in SIDES:
            prompt_name = side if prompt_name is None else prompt_name
            max_length = self.max_length[side] if max_length is None else max_length
        texts: list[str] = []
        for batch in inputs:
            if "text" not in batch:
                raise ValueError(f"mteb gives {', '.join(batch)} and no text; an encoder reads texts only")
            texts += batch["text"]
        return texts, prompt_name, max_length
