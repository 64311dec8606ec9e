"""Vectors of reference texts under deliberate faults of a runtime, by which `embrew parity` names a fault.

Each fault is applied to what the exported tokenizer gives, as a runtime would make it: BOS left out or added twice, the
last token left out, a prompt left out, another pooling, another attention, another truncation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from torch import Tensor

from embrew.files.formats import EXPORT
from embrew.files.reading import content_of
from embrew.model.attention import Attention
from embrew.model.forward import bidirectional_by
from embrew.model.pooling import embed
from embrew.runtimes.portable import PortableEncoder
from embrew.runtimes.stock_folder import pools_last_token
from embrew.settings.encoder import AttentionMode, Pooling
from embrew.storage.saving import REFERENCE_TEXTS
from embrew.text.tokens import Row, Segment, Tokens

FILE = "parity.safetensors"
CHOSEN = tuple(REFERENCE_TEXTS[i] for i in (0, 2, 3, 6, 15))  # plain words, which every tokenizer library splits alike
POOLINGS: tuple[Pooling, ...] = tuple(Pooling(mode) for mode in ("mean", "cls", "last", "weighted_mean"))
LENGTHS = (64, 128, 256, 512)
SAME = 1e-6  # largest difference of unit vectors that count as the same


@dataclass(frozen=True)
class WrongVectors:
    """Unit vectors of the same texts under faults.

    Attributes:
        rows: prompt and text of each row.
        vectors: vectors `(rows, dimensions)` by fault; `+` separates faults that come together.
        long: prompt and text of the row that is truncated.
        truncated: vector `(dimensions,)` of that text by fault.
    """

    rows: list[tuple[str, str]]
    vectors: dict[str, np.ndarray]
    long: tuple[str, str]
    truncated: dict[str, np.ndarray]

    @classmethod
    def read(cls, path: Path) -> WrongVectors:
        """Return what `write` wrote.

        Raises:
            OSError: there is no such file, or it may not be read.
            BrokenFile: its content cannot be read.
            OtherFormat: it has another format number.
        """
        path.open("rb").close()
        with content_of(path), safe_open(path, framework="np") as file:
            about = json.loads((file.metadata() or {})["texts"])
            EXPORT.check(about, path)
            tensors = {name: file.get_tensor(name).astype(np.float32) for name in file.keys()}  # noqa: SIM118
            rows, long = [(prompt, text) for prompt, text in about["rows"]], (about["long"][0], about["long"][1])
            if any(vectors.shape[0] != len(rows) for vectors in tensors.values() if vectors.ndim == 2):
                raise ValueError(f"it does not hold {len(rows)} vectors per fault")
        return cls(
            rows,
            {name: vectors for name, vectors in tensors.items() if vectors.ndim == 2},
            long,
            {name: vector for name, vector in tensors.items() if vector.ndim == 1},
        )

    def write(self, path: Path) -> None:
        """Write a safetensors file, in float16: the cosine of a unit vector with its rounded one is above 1 - 1e-6."""
        about = {"format": EXPORT.number, "rows": self.rows, "long": self.long}
        tensors = {name: vector.astype(np.float16) for name, vector in {**self.vectors, **self.truncated}.items()}
        save_file(tensors, path, metadata={"texts": json.dumps(about, ensure_ascii=False)})


def wrong_vectors(portable: PortableEncoder) -> WrongVectors:
    """Compute the wrong vectors of an encoder, about 15 short forward passes and some on one long text."""
    return _Faults(portable).wrong_vectors()


class _Faults:
    """Applies faults to the token ids, attention and pooling of an encoder."""

    def __init__(self, portable: PortableEncoder) -> None:
        self.portable, self.encoder = portable, portable.encoder
        template, tokenizer = self.encoder.template, portable.tokenizer
        self.encoder_ids = {exported: learned for learned, exported in portable.ids.items()}
        self.bos, self.first, self.end = template.bos_ids, template.first_ids, template.suffix_ids
        self.other_bos = [] if self.bos or tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        has_eos = tokenizer.eos_token_id is None or tokenizer.eos_token_id in self.end
        self.other_eos = [] if has_eos else [tokenizer.eos_token_id]
        self.right = Pooling("last") if pools_last_token(self.encoder) else self.encoder.pooling

    def wrong_vectors(self) -> WrongVectors:
        cases = self.portable.parity["cases"]
        prompts = [case["prompt"] for case in cases if case["prompt_name"] not in self.portable.contexts]
        prompts = sorted(dict.fromkeys(prompts), key=bool)[:2]  # the empty one first
        rows = [(prompt, text) for prompt in prompts for text in CHOSEN]
        by_fault = dict(self._by_tokens([self._body(prompt + text) for prompt, text in rows]))
        by_fault |= self._by_prompts(rows)
        right = by_fault.pop("")
        differing = {
            name: vectors for name, vectors in by_fault.items() if vectors.any(-1).all() and _differs(vectors, right)
        }
        long = (prompts[0], cases[0]["texts"][len(REFERENCE_TEXTS)]["text"])
        return WrongVectors(rows, differing, long, self._truncated(self._body("".join(long))))

    def _by_tokens(self, bodies: Sequence[list[int]]) -> Iterator[tuple[str, np.ndarray]]:
        """Yield vectors by faults of tokens, attention and pooling; the first ones, named "", are right."""
        right: AttentionMode = self.encoder.attention.mode
        for name, first, end in self._frames():
            yield from self._pooled(name, [self._row(first, body, end) for body in bodies], right)
        for mode in ("causal", "bidirectional"):
            if (
                mode != right
                and not self.encoder.backbone.is_bert_type
                and bidirectional_by(self.encoder.backbone.inner)
            ):
                rows = [self._row(self.first, body, self.end) for body in bodies]
                yield from self._pooled(f"attention_{mode}", rows, mode)

    def _frames(self) -> Iterator[tuple[str, list[int], list[int]]]:
        """Yield what precedes and what follows a text, by fault."""
        bos, first, end = self.bos, self.first, self.end
        yield "", first, end
        if bos:
            yield "bos_missing", first[len(bos) :], end
            yield "bos_doubled", bos + first, end
        if self.other_bos:
            yield "bos_added", self.other_bos + first, end
        if end:
            yield "eos_missing", first, end[:-1]
            yield "eos_doubled", first, end + end[-1:]
        if len(end) > 1:
            yield "end_missing", first, []
        if self.other_eos:
            yield "eos_added", first, end + self.other_eos
        if bos and end:
            yield ("bos_missing+eos_missing" if len(end) == 1 else "bos_missing+end_missing"), first[len(bos) :], []

    def _pooled(self, name: str, rows: Sequence[Row], mode: AttentionMode) -> Iterator[tuple[str, np.ndarray]]:
        """Yield vectors of rows in the right pooling, and in others."""
        tokens = Tokens.pad(rows).to(self.encoder.device)
        has_layers = self.encoder.head is not None or self.encoder.center is not None
        with torch.inference_mode():
            states = self.encoder.backbone.hidden_states(tokens, Attention(mode))
            yield name, self._unit(self.right, states, tokens)
            for pooling in POOLINGS:
                if pooling != self.right and not has_layers:
                    yield "+".join(filter(None, (name, f"pooling_{pooling.mode}"))), self._unit(pooling, states, tokens)

    def _by_prompts(self, rows: Sequence[tuple[str, str]]) -> dict[str, np.ndarray]:
        """Return vectors by faults of prompts."""
        prompts = list(dict.fromkeys(prompt for prompt, _ in rows if prompt))
        by_fault = {}
        if prompts:
            by_fault["prompt_missing"] = [text for _, text in rows]
            by_fault["prompt_doubled"] = [prompt + prompt + text for prompt, text in rows]
        for number, added in enumerate(prompts):
            if any(prompt != added for prompt, _ in rows):  # otherwise it is doubled
                name = "prompt_added" if number == 0 else "prompt_added_other"
                by_fault[name] = [added + prompt + text for prompt, text in rows]
        return {name: self._vectors([self._body(text) for text in texts]) for name, texts in by_fault.items()}

    def _truncated(self, body: list[int]) -> dict[str, np.ndarray]:
        """Return the vector of a text beyond the limit, truncated at other lengths; `_no_end`: also what follows it."""
        limit, by_fault = self.encoder.max_seq_length, {}
        for length in sorted({limit // 2, *LENGTHS}):
            room = length - len(self.first) - len(self.end)
            if length < limit and room > 0:
                by_fault[f"truncated_{length}"] = self._vectors([body[:room]])[0]
        for length in sorted({limit, *LENGTHS}):
            if length <= limit and self.end:
                row = self._row(self.first, body[: length - len(self.first)], [])
                _, vectors = next(self._pooled("", [row], self.encoder.attention.mode))
                by_fault[f"truncated_{length}_no_end"] = vectors[0]
        if len(self.first + body + self.end) <= self.encoder.backbone.max_positions:
            by_fault["not_truncated"] = self._vectors([body])[0]
        return {name: vector for name, vector in by_fault.items() if vector.any()}

    def _vectors(self, bodies: Sequence[list[int]]) -> np.ndarray:
        room = int(min(self.encoder.backbone.max_positions, 10**9)) - len(self.first) - len(self.end)
        rows = [self._row(self.first, body[:room], self.end) for body in bodies]
        return next(self._pooled("", rows, self.encoder.attention.mode))[1]

    def _unit(self, pooling: Pooling, states: Tensor, tokens: Tokens) -> np.ndarray:
        vectors = embed(self.encoder.head, pooling, states, tokens)
        vectors = vectors if self.encoder.center is None else self.encoder.center(vectors)
        vectors = vectors[:, : self.encoder.get_embedding_dimension()]
        return np.asarray(torch.nn.functional.normalize(vectors.float(), dim=-1).cpu())

    def _body(self, text: str) -> list[int]:
        """Return what the exported tokenizer makes of a text alone, with the encoder's own ids."""
        ids: Any = self.portable.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [self.encoder_ids.get(i, i) for i in ids]

    def _row(self, first: list[int], body: list[int], end: list[int]) -> Row:
        memory = set(self.encoder.template.memory_ids)
        after = [int(Segment.MEMORY if i in memory else Segment.PROMPT) for i in end]
        return Row.labelled(first, Segment.PROMPT) + Row.labelled(body, Segment.TEXT) + Row(list(end), after)


def _differs(vectors: np.ndarray, right: np.ndarray) -> bool:
    """Return whether vectors are others than the right ones, of as many dimensions; concatenated states have more."""
    return vectors.shape == right.shape and bool(np.abs(vectors - right).max() > SAME)
