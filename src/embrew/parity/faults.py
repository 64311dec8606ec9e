"""The faults of a runtime, by the names that `export.wrong_vectors` gives them, in words."""

from __future__ import annotations

import re
from dataclasses import dataclass

KINDS = {
    "bos": "BOS",
    "eos": "EOS",
    "end": "EOS",
    "prompt": "prompt",
    "pooling": "pooling",
    "attention": "attention",
    "norm": "normalisation",
    "truncated": "truncation",
    "not": "truncation",
    "batch": "batch",
    "order": "order",
    "dimensions": "dimensions",
    "texts": "texts",
    "refused": "texts",
}
"""What a fault is about, by the first word of its name."""
WORDS = {
    "bos_missing": "BOS is missing",
    "bos_doubled": "BOS is doubled",
    "bos_added": "BOS is added, which this encoder does not have",
    "eos_missing": "EOS, or the last token after the text, is missing",
    "end_missing": "EOS and all other tokens after the text are missing",
    "eos_doubled": "EOS, or the last token after the text, is doubled",
    "eos_added": "EOS is added, which this encoder does not have",
    "prompt_missing": "the prompt is missing",
    "prompt_doubled": "the prompt is doubled",
    "prompt_added": "the runtime adds a prompt of its own before every text",
    "prompt_added_other": "the runtime adds a prompt of its own before every text",
    "pooling_mean": "wrong pooling: the mean of all tokens",
    "pooling_cls": "wrong pooling: the first token",
    "pooling_last": "wrong pooling: the last token",
    "pooling_weighted_mean": "wrong pooling: the weighted mean of all tokens",
    "attention_causal": "attention is causal instead of bidirectional",
    "attention_bidirectional": "attention is bidirectional instead of causal",
    "not_truncated": "texts are not truncated at {limit} tokens",
}
TRUNCATED = re.compile(r"truncated_(\d+)(_no_end)?")


@dataclass(frozen=True)
class Cause:
    """A cause of a difference.

    Attributes:
        faults: their names; `+` separates faults that come together.
        words: what is wrong.
    """

    faults: str
    words: str

    @property
    def kinds(self) -> list[str]:
        """What the faults are about."""
        return [KINDS[fault.split("_")[0]] for fault in self.faults.split("+")]


def cause_of(faults: str, *, limit: int) -> Cause:
    """Return a cause in words; `limit` is the largest number of tokens."""
    return Cause(faults, ", and ".join(_words(fault, limit) for fault in faults.split("+")))


def truncated_length(fault: str) -> int | None:
    """Return the number of tokens at which a fault truncates texts; None: it does not."""
    cut = TRUNCATED.fullmatch(fault)
    return None if cut is None else int(cut[1])


def _words(fault: str, limit: int) -> str:
    cut = TRUNCATED.fullmatch(fault)
    if cut is None:
        return WORDS[fault].format(limit=limit)
    length = int(cut[1])
    where = f"at {length} tokens" + (f" instead of {limit}" if length != limit else "")
    return f"long texts are truncated {where}" + (", and lose EOS or what else follows a text" if cut[2] else "")
