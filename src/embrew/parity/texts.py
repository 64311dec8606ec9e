"""Causes by single texts: those beyond the limit, and those that a runtime reads or refuses on their own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from embrew.parity.compared import CLEAR, MARGIN, NOISE, STANDS_OUT, TOO_NEAR, Compared
from embrew.parity.conditions import ALONE, LONG, Key
from embrew.parity.faults import Cause, truncated_length
from embrew.parity.vectors import agreement
from embrew.storage.saving import TEXTS

SPECIAL = TEXTS[10]  # holds names of special tokens, which Rust tokenizers read as tokens in any text
WORD = 8  # tokens of a word at most, by which the length at which a runtime truncates is measured


def of_length(compared: Compared) -> list[Cause]:
    """Return causes by texts beyond the limit, if shorter ones with the same prompt are right."""
    long, limit, stored = (
        compared.found.conditions[LONG].vectors,
        compared.reference.max_length,
        compared.reference.wrong,
    )
    fine = {key[0] for key, vector in compared.theirs.items() if compared.is_right(key, vector)}
    long = {key: vector for key, vector in long.items() if key[0] in fine}
    named = _truncation(compared, long)
    if named is not None:
        compared.cut = truncated_length(named) or limit
        return [compared.cause(named)]
    wrong = {key: vector for key, vector in long.items() if not compared.is_right(key, vector)}
    if not wrong:
        return []
    if stored.long in long and stored.long not in wrong:
        return [_of_long_texts(wrong, long, "others do not")]
    cut = compared.truncation()
    if cut is None:
        return [Cause("truncated", f"texts of {limit} tokens and more are truncated otherwise, or lose their end")]
    if abs(cut - limit) <= WORD:
        return [_of_long_texts(wrong, long, f"though they are truncated at about {cut} tokens")]
    compared.cut = cut
    return [Cause("truncated", f"long texts are truncated at about {cut} tokens instead of {limit}")]


def _truncation(compared: Compared, long: Mapping[Key, np.ndarray]) -> str | None:
    """Return the fault whose vector a long text has, if the right one is clearly farther; None: there is none."""
    stored = compared.reference.wrong
    if stored.long not in long or not stored.truncated:
        return None
    theirs = long[stored.long][None]
    right = 1 - agreement(theirs, compared.right[stored.long][None]).mean
    distance = {name: 1 - agreement(theirs, each[None]).mean for name, each in stored.truncated.items()}
    name = min(distance, key=lambda name: distance[name])
    others = [right if right > TOO_NEAR else 0.0, *(each for other, each in distance.items() if other != name)]
    factor = MARGIN if right > 1 - compared.min_cosine else CLEAR
    near = distance[name] <= 1 - compared.min_cosine and max(factor * distance[name], NOISE) < min(others)
    return name if near else None


def _of_long_texts(wrong: Mapping[Key, np.ndarray], long: Mapping[Key, np.ndarray], but: str) -> Cause:
    differ = "differs" if len(wrong) == 1 else "differ"
    return Cause("texts", f"{len(wrong)} of {len(long)} texts beyond the limit {differ}, {but}")


def of_short_texts(compared: Compared) -> list[Cause]:
    """Return a cause if only those texts are right that are shorter than where the runtime truncates."""
    cut = compared.truncation()
    short = [key for key in compared.theirs if cut is not None and compared.lengths[key] < cut]
    if cut is None or not short or not compared.agreement(short).reaches(compared.min_cosine):
        return []
    words = f"texts are truncated at about {cut} tokens instead of {compared.reference.max_length}"
    return [Cause("truncated", f"{words}; shorter ones are right")]


def of_texts(compared: Compared) -> list[Cause]:
    """Return a cause if some texts have other vectors, while most are right and clearly nearer."""
    known = [key for key in compared.theirs if compared.lengths[key] < compared.cut]
    wrong = [key for key in known if not compared.is_right(key, compared.theirs[key])]
    if {text for _, text in wrong} == {SPECIAL} and _may_be_read_as_tokens(compared, wrong):
        compared.notes.append(
            "a text with names of special tokens gets another vector: the runtime reads such names, for example "
            "</s>, as tokens; remove them from texts before they get there"
        )
        compared.excused += wrong
        return []
    if not wrong or not _stand_out(compared, wrong, known):
        return []
    by_prompt = [prompt for prompt in dict.fromkeys(key[0] for key in wrong) if _all_of(prompt, wrong, known)]
    if all(key[0] in by_prompt for key in wrong):
        which = " and ".join(repr(prompt) if prompt else "no prompt" for prompt in by_prompt)
        return [Cause("texts", f"all texts with {'the prompt ' if by_prompt[0] else ''}{which} differ, others do not")]
    first, count = wrong[0], len(wrong)
    lowest = compared.agreement(wrong).lowest
    words = f"{count} of {len(known)} texts {'differs' if count == 1 else 'differ'}, others do not (lowest cosine "
    return [Cause("texts", f"{words}{lowest:.6f}): the first, {first[1][:40]!r}, {_what(compared, first)}")]


def of_refusals(compared: Compared) -> list[Cause]:
    """Return a cause if the runtime refuses texts within the limit; other refusals are noted."""
    for name, condition in compared.found.conditions.items():
        if condition.refused and name != ALONE:
            compared.notes.append(f"refused ({name}): {condition.refused}")
    first = compared.found.first
    return [Cause("refused", f"texts within the limit are refused: {first.refused}")] if first.refused else []


def _may_be_read_as_tokens(compared: Compared, wrong: list[Key]) -> bool:
    """Return whether the token ids of texts differ, or are not known."""
    return not compared.found.compared_ids or all(key in compared.found.other_ids for key in wrong)


def _stand_out(compared: Compared, wrong: list[Key], known: list[Key]) -> bool:
    """Return whether the wrong texts are at most half, and much farther away than the others."""
    distance = {key: 1 - compared.agreement([key]).mean for key in known}
    return 2 * len(wrong) <= len(known) and min(distance[key] for key in wrong) > max(
        STANDS_OUT * compared.usual, NOISE
    )


def _all_of(prompt: str, wrong: list[Key], known: list[Key]) -> bool:
    """Return whether all texts with a prompt are wrong, and these are several."""
    return sum(key[0] == prompt for key in wrong) == sum(key[0] == prompt for key in known) > 1


def _what(compared: Compared, key: Key) -> str:
    if key in compared.found.other_ids:
        return "has other token ids"
    return "has the same token ids and another vector" if compared.found.compared_ids else "has another vector"
