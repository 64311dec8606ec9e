"""Measure at how many tokens a runtime truncates texts, by its own vectors alone."""

from __future__ import annotations

import numpy as np

from embrew.parity.reference import Reference
from embrew.parity.runtimes.runtime import Refused, Runtime
from embrew.parity.vectors import agreement

SAME = 1e-6  # distance (1 - cosine) of vectors of the same tokens, at least; noise of the runtime is added


def truncated_at(runtime: Runtime, reference: Reference) -> int | None:
    """Return the number of tokens after which other words do not change a long text's vector; None: there is none.

    The template's tokens are counted. It takes about 10 requests.
    """
    if reference.tokenizer is None or not runtime.by_words:
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(reference.tokenizer))
    tokenizer.no_truncation()
    prompt, text = reference.wrong.long
    words = text.split(" ")

    def vector(kept: int) -> np.ndarray:
        others = ["zero"] * (len(words) - kept)
        return runtime.embed([prompt + " ".join([*words[:kept], *others])])

    try:
        whole, again = vector(len(words)), vector(len(words))
        limit = SAME + 4 * abs(1 - agreement(whole, again).mean)
        low, high = 0, len(words)  # the first `high` words decide the vector, the first `low` do not
        while high - low > 1:
            middle = (low + high) // 2
            same = 1 - agreement(vector(middle), whole).mean <= limit
            low, high = (low, middle) if same else (middle, high)
    except Refused:
        return None
    if high == len(words):
        return None
    return len(tokenizer.encode(prompt + " ".join(words[:high])).ids)
