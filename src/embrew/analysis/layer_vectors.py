"""Vectors of several layers from one forward pass per text, and the time that each layer takes."""

from __future__ import annotations

import hashlib
import logging
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from embrew.encoder import Encoder
from embrew.model.batching import encode_rows
from embrew.text.template import Template
from embrew.text.tokens import Row, Tokens

logger = logging.getLogger(__name__)
Call = tuple[str, int, str]  # instruction, limit in tokens, hash of the texts
SAMPLE = 64  # number of texts for timing


class LayerVectors:
    """Cached pooled vectors of an encoder at several layers; `at` returns encoders that read from the cache.

    A dry run with `plan` collects the texts that will be requested, so that the size is known in advance. Each list of
    texts is then encoded once, for all layers, when it is first requested.

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
        self._planned: dict[Call, Sequence[str]] = {}
        self._kept: dict[Call, Tensor] = {}

    def plan(self) -> Reader:
        """Return an encoder of random two-dimensional vectors that records the requested texts."""
        generator = np.random.default_rng(0)

        def note(call: Call, texts: Sequence[str]) -> np.ndarray:
            self._planned[call] = texts
            return generator.standard_normal((len(texts), 2), dtype=np.float32)

        return Reader(self.encoder, note)

    def at(self, layer: int, dim: int) -> Reader:
        """Return the encoder truncated to this number of layers and dimensions."""
        index = self.layers.index(layer)

        def read(call: Call, texts: Sequence[str]) -> np.ndarray:
            if call not in self._kept:
                self._kept[call] = self._encode(call, texts)
            vectors = self._kept[call][:, index, :dim].contiguous()
            return (normalize(vectors, dim=-1) if self.encoder.normalize else vectors).numpy()

        return Reader(self.encoder, read)

    @property
    def texts(self) -> int:
        """Number of texts in the planned lists."""
        return sum(map(len, self._planned.values()))

    @property
    def nbytes(self) -> int:
        """Bytes of all planned vectors: layers × texts × dimensions × 4."""
        return 4 * len(self.layers) * self.texts * self.encoder.get_embedding_dimension()

    def check_size(self, max_bytes: int) -> None:
        """Log the size of the planned vectors.

        Raises:
            ValueError: it is above `max_bytes`.
        """
        shape = (
            f"{len(self.layers)} layers × {self.texts:,} texts × {self.encoder.get_embedding_dimension()} dimensions"
        )
        logger.info("%s in float32: %s are kept in memory", shape, _gigabytes(self.nbytes))
        if self.nbytes > max_bytes:
            raise ValueError(
                f"{shape} in float32 are {_gigabytes(self.nbytes)}, and {_gigabytes(max_bytes)} are allowed; choose "
                "fewer layers (--layers), less data (--data; a suite's documents: judged takes a sample of a corpus), "
                "or allow more (--max-gb)"
            )

    def milliseconds(self, *, rounds: int = 5, seed: int = 42) -> list[float]:
        """Return milliseconds per text of `encode` at each layer: the median over rounds on 64 of the planned texts.

        Layers alternate within a round, so that other load on the machine affects all of them.
        """
        every = [text for texts in self._planned.values() for text in texts]
        sample = random.Random(seed).sample(every, min(SAMPLE, len(every)))
        encode = partial(
            self.encoder.encode,
            sample,
            batch_size=len(sample),
            batch_tokens=self.batch_tokens,
            show_progress_bar=False,
        )
        taken: dict[int, list[float]] = {layer: [] for layer in self.layers}
        for number in range(rounds + 1):
            for layer, seconds in taken.items():
                start = time.perf_counter()
                encode(num_layers=layer)
                if number:  # the first round is a warm-up
                    seconds.append(time.perf_counter() - start)
        return [1000 * statistics.median(seconds) / len(sample) for seconds in taken.values()]

    def _encode(self, call: Call, texts: Sequence[str]) -> Tensor:
        """Return float32 vectors `(texts, layers, dimensions)`: the mean over templates, not normalised."""
        encoder, (instruction, limit, _) = self.encoder, call
        width, chosen = encoder.get_embedding_dimension(), [layer - 1 for layer in self.layers]

        def embed(tokens: Tokens, _: int) -> Tensor:
            pooled = encoder.layers(tokens.to(encoder.device))[chosen, :, :width]
            return pooled.transpose(0, 1).flatten(1)

        total: Tensor | None = None
        with torch.inference_mode():
            for template in encoder.templates:

                def rows(start: int, stop: int, template: Template = template) -> list[Row]:
                    return template.rows(texts[start:stop], instruction=instruction, max_length=limit, first=start)

                part = encode_rows(
                    rows,
                    len(texts),
                    embed,
                    len(chosen) * width,
                    batch_size=32,
                    batch_tokens=self.batch_tokens,
                    show_progress_bar=self.show_progress_bar,
                    tokenize_ahead=encoder.device.type != "cpu",
                ).div_(len(encoder.templates))
                total = part if total is None else total.add_(part)
        assert total is not None
        return total.view(len(texts), len(chosen), width)


class Reader:
    """The three encode methods of an `Encoder`, with its prompts and limits, that call `read` for vectors."""

    def __init__(self, encoder: Encoder, read: Callable[[Call, Sequence[str]], np.ndarray]) -> None:
        self._encoder = encoder
        self._read = read
        self.max_length = encoder.max_length

    @property
    def prompts(self) -> Mapping[str, str]:
        """The encoder's prompts."""
        return self._encoder.prompts

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
        instruction = self._encoder.instruction(prompt_name, prompt)
        digest = hashlib.sha256("\0".join(inputs).encode()).hexdigest()
        return self._read((instruction, max_length or self._encoder.max_seq_length, digest), inputs)

    def encode_query(self, inputs: Sequence[str], *args: Any, **options: Any) -> Any:
        """Return vectors of queries, with the encoder's prompt and limit."""
        return Encoder.encode_query(self, inputs, *args, **options)  # type: ignore[arg-type]

    def encode_document(self, inputs: Sequence[str], *args: Any, **options: Any) -> Any:
        """Return vectors of documents, with the encoder's prompt and limit."""
        return Encoder.encode_document(self, inputs, *args, **options)  # type: ignore[arg-type]


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
