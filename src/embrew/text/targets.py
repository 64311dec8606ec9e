"""Texts that a language model is asked to write, as token ids."""

from __future__ import annotations

from collections.abc import Sequence


def target_ids(ids: Sequence[int], *, end: Sequence[int], limit: int, whole: bool = True) -> list[int]:
    """Return at most `limit` tokens of a target; its end, an EOS token, only where the target is complete.

    A model trained on EOS after the first half of an answer learns to stop in the middle of a sentence.

    Args:
        ids: of the text.
        end: the tokens that end a text: EOS, or none.
        limit: in tokens, the end included.
        whole: False where `ids` are only the beginning of a text.

    >>> target_ids([5, 6], end=[2], limit=3), target_ids([5, 6, 7], end=[2], limit=3)
    ([5, 6, 2], [5, 6, 7])
    """
    fits = len(ids) + len(end) <= limit
    return [*ids, *end] if fits and whole else list(ids[:limit])
