"""Causes by how texts are sent: prompts by name, several texts in a request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embrew.parity.compared import CLEAR, TOO_NEAR, Compared
from embrew.parity.conditions import BATCHES, NAMED, Key
from embrew.parity.faults import Cause
from embrew.parity.vectors import agreement, norms

Rows = Sequence[tuple[Key, np.ndarray]]


def of_names(compared: Compared) -> list[Cause]:
    """Return causes by prompts of the runtime, where prompts as words are right or have another fault."""
    rows = _rows(compared, NAMED)
    by_prompt = [[row for row in rows if row[0][0] == prompt] for prompt in dict.fromkeys(key[0] for key, _ in rows)]
    wrong = next((each for each in by_prompt if not _expected(compared, each)), None)
    if wrong is None:
        return []
    name = next(case.prompt.name for case in compared.reference.cases if case.prompt.words == wrong[0][0][0])
    bare = [(vector, compared.theirs["", key[1]]) for key, vector in wrong if ("", key[1]) in compared.theirs]
    if len(bare) == len(wrong) and compared.same(*zip(*bare, strict=True)):
        return [Cause("prompt_missing", f"the prompt {name!r} is missing where it is given by name")]
    stored = compared.reference.wrong
    doubled = dict(zip(stored.rows, stored.vectors.get("prompt_doubled", ()), strict=False))
    twice = [(vector, doubled[key]) for key, vector in wrong if key in doubled]
    if twice and len(twice) == len(wrong) and compared.same(*zip(*twice, strict=True)):
        return [Cause("prompt_doubled", f"the prompt {name!r} is doubled where it is given by name")]
    return [Cause("prompt_other", f"the runtime has another prompt by the name {name!r}")]


def of_batches(compared: Compared) -> list[Cause]:
    """Return causes by vectors that differ from those of the same texts alone."""
    changed = []
    for name in BATCHES:
        rows = _rows(compared, name)
        if not rows or _same_as_alone(compared, rows):
            continue
        if _is_other_order(compared, rows):
            return [Cause("order", "vectors come in another order than the texts of a request")]
        changed.append(name)
    if not changed:
        return []
    fine = [name for name in BATCHES if name not in changed and name in compared.found.conditions]
    but = f", not in {' and '.join(fine)}" if fine else ""
    return [Cause("batch", f"vectors depend on the other texts of a request: in {' and '.join(changed)}{but}")]


def _rows(compared: Compared, condition: str) -> Rows:
    """Return what was measured under a condition, of texts that were measured alone, too."""
    found = compared.found.conditions.get(condition)
    return [(key, vector) for key, vector in (found.rows if found else []) if key in compared.theirs]


def _same_as_alone(compared: Compared, rows: Rows) -> bool:
    """Return whether vectors differ from those of the same texts alone by no more than arithmetic explains."""
    alone = np.stack([compared.theirs[key] for key, _ in rows])
    change = agreement(np.stack([vector for _, vector in rows]), alone)
    usual = 1 - agreement(alone, np.stack([compared.right[key] for key, _ in rows])).lowest
    return _expected(compared, rows) and 1 - change.lowest <= max(TOO_NEAR, CLEAR * usual)


def _expected(compared: Compared, rows: Rows) -> bool:
    """Return whether vectors are right, or else those of the same texts alone, which are as wrong."""
    given, alone, right = (
        np.stack([vector for _, vector in rows]),
        np.stack([compared.theirs[key] for key, _ in rows]),
        np.stack([compared.right[key] for key, _ in rows]),
    )
    twice = 1 - 2 * (1 - compared.min_cosine)  # both may be less precise
    return compared.same(given, right) or (not compared.same(alone, right) and agreement(given, alone).reaches(twice))


def _is_other_order(compared: Compared, rows: Rows) -> bool:
    """Return whether the vectors of a request are those of its texts, in another order."""
    alone = np.stack([compared.theirs[key] for key, _ in rows])
    given = np.stack([vector for _, vector in rows])
    unit = [each / np.maximum(norms(each), 1e-30)[:, None] for each in (given, alone)]
    order = (unit[0] @ unit[1].T).argmax(1)
    return sorted(order) == list(range(len(rows))) and compared.same(given, alone[order])
