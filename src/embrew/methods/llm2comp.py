"""LLM2Comp's first stage: a text is split, and the language model continues it from the memory of its first part.

*Learning to Compress: Unlocking the Potential of Large Language Models for Text Representation* (arXiv 2511.17129), for
a text n_1..n_N, a split after token a, memory tokens m_1..m_k, and the frozen original LM g:

    Eqs. 1, 3  M̃ = f(n_1..n_a, m_1..m_k)                       memory states of the encoder f
    Eq. 2      −log g(n_l | M̃, n_1..n_l-1),  l = 1..a          reconstruction: divergence: nll, target: same
    Eq. 4      −log g(n_j | M̃, n_a+1..n_j-1),  j > a           continuation: divergence: nll
    Eq. 5      KL( g(· | n_1..n_j-1) ‖ g(· | M̃, n_a+1..n_j-1) )   distillation: divergence: kl

Losses are in `compression`; Eq. 5 is read over the whole vocabulary (`losses.vocabulary.token_kl`). The second and
third stage, Eqs. 6 and 8, are in `info_nce`.
"""

from __future__ import annotations

import logging
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from embrew.data.documents import sentence_spans
from embrew.encoder import Encoder
from embrew.methods.base import DataRow, blocks_of, text_ids, token_counts, tokenized, usable
from embrew.methods.frozen_decoder import CompressionRows

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


class SplitLimits(NamedTuple):
    """Token limits.

    Attributes:
        text: maximum tokens per text, without BOS.
        context: maximum tokens per context, besides the template's.
        min_context: minimum tokens per context.
        min_continuation: minimum tokens per continuation; 0: texts are not split.
    """

    text: int
    context: int
    min_context: int
    min_continuation: int


@dataclass(frozen=True, kw_only=True)
class SplitTexts:
    """Contexts and targets that are parts of a text; attributes as of `Compression`, which describes them."""

    target: Literal["continuation", "same", "both"]
    split: Literal["token", "sentence"] | None
    skip_rows: int
    min_context_tokens: int
    min_target_tokens: int

    @property
    def targets(self) -> dict[str, str]:
        """What is predicted, with the suffix of the names of its parts in a batch."""
        return {"continuation": "", "same": "_same"} if self.target == "both" else {self.target: ""}

    def limits(self, encoder: Encoder) -> SplitLimits:
        """Return the limits of texts, contexts and continuations."""
        limit, bos, scored = encoder.max_length["document"], len(encoder.template.bos_ids), self.skip_rows + 1
        room = limit - len(encoder.template.rows([[]])[0].ids)
        min_context = max(self.min_context_tokens - bos, scored if "same" in self.targets else 1)
        is_split = self.split is not None or "continuation" in self.targets
        return SplitLimits(limit - bos, room, min_context, max(self.min_target_tokens, scored) if is_split else 0)

    def check_lengths(self, encoder: Encoder) -> None:
        """Raise if no text could be read and split."""
        template, limit = encoder.template, encoder.max_length["document"]
        longest, room, min_context, min_continuation = self.limits(encoder)
        if template.between is not None:
            raise ValueError(
                f"template={template.pattern!r} repeats the text, but compression can split only a text that is read "
                "once; remove {echo}"
            )
        if min_context > room or min_context + min_continuation > longest:
            raise ValueError(
                f"max_length.document={limit} has room for a context of {room} tokens and a text of {longest}, and the "
                f"shortest context has {min_context}, the shortest continuation {min_continuation} "
                f"(skip_rows={self.skip_rows}, min_context_tokens={self.min_context_tokens}, "
                f"min_target_tokens={self.min_target_tokens}); lower one of the three, or raise max_length"
            )

    def longest_target(self, encoder: Encoder) -> int:
        """Return the maximum number of tokens of a target."""
        longest, room, min_context, _ = self.limits(encoder)
        sizes = {"continuation": longest - min_context, "same": min(longest, room)}
        return max(sizes[name] for name in self.targets)

    def longest_teacher(self, encoder: Encoder) -> tuple[int, int] | None:
        """Return the maximum numbers of tokens that a teacher reads before a target, and of the target.

        None: a context and its continuation are one text, within the length limit.
        """
        if [*self.targets] == ["continuation"]:
            return None
        longest, room, *_ = self.limits(encoder)
        return len(encoder.template.bos_ids) + min(longest, room), min(longest, room)

    def prepare(self, dataset: Dataset, encoder: Encoder) -> Dataset:
        """Leave out texts that are too short to split; log how many have no sentence end to be split at."""
        limits = self.limits(encoder)
        shortest = limits.min_context + limits.min_continuation
        keep = [i for i, count in enumerate(token_counts(dataset, "text", encoder)) if count >= shortest]
        none = f"all {len(dataset)} texts are shorter than {shortest} tokens, the minimum that compression can split"
        shorter = f"compression leaves out {{}} of {{}} texts shorter than {shortest} tokens"
        dataset = usable(dataset, keep, otherwise=none, left_out=shorter)
        if self.split == "sentence":
            without = 0
            for texts in blocks_of(dataset, "text"):
                ranges = self._ranges(text_ids(texts, encoder), encoder)
                for sizes, ends in zip(ranges, sentence_ends(texts, encoder), strict=True):
                    without += not any(end in sizes for end in ends)
            what = "have no inner sentence end where they may be split, and are split at a random token"
            logger.info("compression: %d of %d texts %s", without, len(dataset), what)
        return dataset

    def parts(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int) -> CompressionRows:
        """Return what the encoder, the original LM and the decoder read of each text."""
        halves = self._split([row["text"] for row in rows], encoder, seed)
        contexts = [context for context, _ in halves]
        rests = [rest for _, rest in halves]
        return CompressionRows.labelled(
            encoder.template.rows(contexts, instruction="", max_length=encoder.max_length["document"]),
            contexts,
            {suffix: contexts if name == "same" else rests for name, suffix in self.targets.items()},
            bos=encoder.template.bos_ids,
        )

    def _split(self, texts: Sequence[str], encoder: Encoder, seed: int) -> list[tuple[list[int], list[int]]]:
        """Return token ids of context and continuation of each text, truncated where it exceeds the length limit.

        Seed and text decide the draw of the split. A text that is not split has an empty continuation.
        """
        limits = self.limits(encoder)
        halves: list[tuple[list[int], list[int]]] = []
        ends: list[list[int]] = sentence_ends(texts, encoder) if self.split == "sentence" else [[]] * len(texts)
        tokens = [ids[: limits.text] for ids in text_ids(texts, encoder)]
        for ids, sizes, stops in zip(tokens, self._ranges(tokens, encoder), ends, strict=True):
            if not limits.min_continuation:
                halves.append((ids[: sizes[-1]], []))
                continue
            draw = random.Random(f"{seed} {ids}")
            possible = [size for size in stops if size in sizes]
            size = draw.choice(possible) if possible else draw.randint(sizes[0], sizes[-1])
            halves.append((ids[:size], ids[size:]))
        return halves

    def _ranges(self, tokens: Sequence[list[int]], encoder: Encoder) -> list[range]:
        """Return the numbers of tokens that the context of each text may have."""
        longest, room, min_context, min_continuation = self.limits(encoder)
        return [range(min_context, min(min(len(ids), longest) - min_continuation, room) + 1) for ids in tokens]


def sentence_ends(texts: Sequence[str], encoder: Encoder) -> list[list[int]]:
    """Return, for each text, the numbers of tokens after which a sentence ends and another one follows.

    A token that holds the last character of a sentence belongs to it, whatever else it holds. Tokens are those of
    `text_ids`.
    """
    if not texts:
        return []
    ends = []
    encoded = tokenized(texts, encoder, offsets=True)
    for text, offsets in zip(texts, encoded["offset_mapping"], strict=True):
        starts = [start for start, _ in offsets]
        ends.append(sorted({bisect_left(starts, end) for _, end in sentence_spans(text)[:-1]}))
    return ends
