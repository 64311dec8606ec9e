"""Texts of a corpus, for what needs only some of them."""

from __future__ import annotations

from pathlib import Path

from embrew.corpus.corpus import read_texts
from embrew.corpus.ids import Ids
from embrew.corpus.job import Job
from embrew.data.rejects import Rejects
from embrew.sampling import sample_in_order


def sample_texts(path: str | Path, most: int, *, seed: int = 42) -> tuple[str, ...]:
    """Return a seeded sample of the distinct texts of a corpus, in their order, blank ones left out.

    Args:
        path: whatever `encode_corpus` reads.
        most: size of the sample.
        seed: random seed of the sample.

    Raises:
        ValueError: a row has no text; or all texts are blank.
    """
    job = Job(input=path, output="")
    rows = read_texts(job, Rejects(use="read"), Ids(keep=True))
    texts = list(dict.fromkeys(row.text for row in rows if row.text.strip()))
    if not texts:
        raise ValueError(f"{path} holds no text that is not blank; give rows with a text")
    return tuple(sample_in_order(texts, most, seed=seed))
