"""Vectors of several layers from one forward pass per text, and the time that each layer takes."""

from __future__ import annotations

import hashlib
import logging
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from embrew.encoder import Encoder
from embrew.free_memory import total_and_free
from embrew.model.batching import encode_rows
from embrew.text.template import Template
from embrew.text.tokens import Row, Tokens

logger = logging.getLogger(__name__)
Call = tuple[str, int, str]  # instruction, limit in tokens, hash of the texts
SAMPLE, ROUNDS = 64, 5  # texts that are timed, and how often
SHARE = 0.5  # of the free memory that vectors may take


class LayerVectors:
    """Pooled vectors of an encoder at several layers; each list of texts is encoded once, when it is first read.

    Args:
        encoder: the encoder.
        layers: layers to keep; layer i is the output of the encoder truncated to i layers.
        batch_tokens: padded tokens per batch.
        show_progress_bar: show one progress bar per list of texts.
    """

    def __init__(
        self,
        encoder: Encoder,
        layers: Sequence[int],
        *,
        batch_tokens: int | None = None,
        show_progress_bar: bool = False,
    ) -> None:
        self.encoder = encoder.eval()
        self.layers = tuple(layers)
        self.batch_tokens = batch_tokens
        self.show_progress_bar = show_progress_bar
        self.texts: list[str] = []
        self._vectors: dict[Call, Tensor] = {}

    def read(self, call: Call, texts: Sequence[str], layer: int, dim: int) -> np.ndarray:
        """Return the vectors of the encoder truncated to a number of layers and dimensions."""
        if call not in self._vectors:
            self.texts += texts
            self._check_size()
            self._vectors[call] = self._encode(call, texts)
        vectors = self._vectors[call][:, self.layers.index(layer), :dim].contiguous()
        return (normalize(vectors, dim=-1) if self.encoder.normalize else vectors).numpy()

    def milliseconds(self, *, seed: int = 42) -> list[float]:
        """Return milliseconds per text of `encode` at each layer: the median over rounds on 64 of the texts.

        Layers alternate within a round, so that other load on the machine affects all of them.
        """
        sample = random.Random(seed).sample(self.texts, min(SAMPLE, len(self.texts)))
        options: Any = {"batch_tokens": self.batch_tokens, "show_progress_bar": False}
        seconds: dict[int, list[float]] = {layer: [] for layer in self.layers}
        for number in range(ROUNDS + 1):
            for layer, measured in seconds.items():
                start = time.perf_counter()
                self.encoder.encode(sample, batch_size=len(sample), num_layers=layer, **options)
                if number:  # the first round is a warm-up
                    measured.append(time.perf_counter() - start)
        return [1000 * statistics.median(measured) / len(sample) for measured in seconds.values()]

    def _check_size(self) -> None:
        """Raise if the vectors of all texts so far, 4 bytes × layers × texts × dimensions, are too many."""
        shape = len(self.layers), len(self.texts), self.encoder.get_embedding_dimension()
        size, free = 4 * shape[0] * shape[1] * shape[2], total_and_free()[1]
        what = f"{shape[0]} layers × {shape[1]:,} texts × {shape[2]} dimensions in float32: {size / 1e9:.2f} GB"
        logger.info("%s are kept in memory", what)
        if free is not None and size > SHARE * free:
            raise ValueError(
                f"{what}, and {SHARE * free / 1e9:.2f} GB are allowed, half of the free memory; choose fewer layers "
                "(--layers), or less data (--data; a suite's documents: judged takes a sample of a corpus)"
            )

    def _encode(self, call: Call, texts: Sequence[str]) -> Tensor:
        """Return float32 vectors `(texts, layers, dimensions)`: the mean over templates, not normalised."""
        encoder, (instruction, limit, _) = self.encoder, call
        width, chosen = encoder.get_embedding_dimension(), [layer - 1 for layer in self.layers]

        def embed(tokens: Tokens, _: int) -> Tensor:
            pooled = encoder.layers(tokens.to(encoder.device))[chosen, :, :width]
            return pooled.transpose(0, 1).flatten(1)

        def vectors(template: Template) -> Tensor:
            def rows(start: int, stop: int) -> list[Row]:
                return template.rows(texts[start:stop], instruction=instruction, max_length=limit, first=start)

            return encode_rows(
                rows,
                len(texts),
                embed,
                len(chosen) * width,
                batch_size=32,
                batch_tokens=self.batch_tokens,
                show_progress_bar=self.show_progress_bar,
                tokenize_ahead=encoder.device.type != "cpu",
            ).div_(len(encoder.templates))

        with torch.inference_mode():
            total = vectors(encoder.templates[0])
            for template in encoder.templates[1:]:
                total.add_(vectors(template))
        return total.view(len(texts), len(chosen), width)


class TruncatedEncoder:
    """The three encode methods of an `Encoder` truncated to `layer` layers and `dim` dimensions."""

    def __init__(self, vectors: LayerVectors, layer: int, dim: int) -> None:
        self._vectors, self._layer, self._dim = vectors, layer, dim
        self.settings = vectors.encoder.settings

    @property
    def prompts(self) -> Mapping[str, str]:
        """The encoder's prompts."""
        return self._vectors.encoder.prompts

    def encode(
        self,
        inputs: Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        max_length: int | None = None,
        **_: Any,
    ) -> np.ndarray:
        """Return vectors of texts, `(texts, dimensions)`."""
        encoder = self._vectors.encoder
        instruction = encoder.instruction(prompt_name, prompt)
        digest = hashlib.sha256("\0".join(inputs).encode()).hexdigest()
        call = instruction, max_length or encoder.max_seq_length, digest
        return self._vectors.read(call, inputs, self._layer, self._dim)

    def encode_query(self, inputs: Sequence[str], *args: Any, **options: Any) -> Any:
        """Return vectors of queries, with the encoder's prompt and limit."""
        return Encoder.encode_query(self, inputs, *args, **options)  # type: ignore[arg-type]

    def encode_document(self, inputs: Sequence[str], *args: Any, **options: Any) -> Any:
        """Return vectors of documents, with the encoder's prompt and limit."""
        return Encoder.encode_document(self, inputs, *args, **options)  # type: ignore[arg-type]
