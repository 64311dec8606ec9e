"""Exact match of answers after SQuAD's normalisation, and whether a text contains an answer.

SQuAD: 100,000+ Questions for Machine Comprehension of Text (Rajpurkar et al., arXiv 1606.05250), section 6.1 and its
evaluation script.
"""

import re
import string
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation and the articles a, an, the, with single spaces.

    Examples:
        >>> normalise(" The  U.S. Army, an  army")
        'us army army'
    """
    plain = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """Return whether a prediction equals one of the answers after normalisation."""
    return normalise(prediction) in {normalise(answer) for answer in answers}


def contains_answer(text: str, answers: Sequence[str]) -> bool:
    """Return whether a text contains one of the answers as whole words, both normalised; 1910 does not contain 10.

    An answer that is empty after normalisation is in no text.
    """
    searched = normalise(text)
    found = (normalise(answer) for answer in answers)
    return any(answer and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", searched) for answer in found)


def can_be_found(answers: Sequence[str]) -> bool:
    """Return whether a context could contain one of the answers: texts do not quote `yes` or `no` (HotpotQA)."""
    return any(normalise(answer) not in ("", "yes", "no") for answer in answers)
