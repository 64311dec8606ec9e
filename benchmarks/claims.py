"""Claims of a plan: what is expected before the runs, and whether the scores bear it out.

Keys of a claim:
    claim: in words.
    better: a row as the table names it.
    than: another row, whose score of the same seed is compared; or a number, in the table's units.
    task: a task, an average, or, of `also`, `task: score`.
    than_task: of the other row, where it is another one, such as a control's; `than` may then be the same row.
    by: the least difference in points (scores times 100; scores of `also` as they are); 0 without it.
    lower: lower scores are better (perplexity).
    added: when and why, of a claim that was written after scores were known; it stands beside the claim.

A claim **holds** if the difference is above `by` with every seed, is **reversed** if it is below `-by` with every seed,
and is else **not resolved**; one seed in common is said beside it. Seeds that both rows have are compared. A row in
which nothing is drawn (an untrained model) has every seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

KEYS = ("claim", "better", "than", "task", "than_task", "by", "lower", "added")
Scores = Mapping[str, Mapping[str, Sequence[float | None]]]
Seeds = Mapping[str, Sequence[int]]


def settle(
    claims: Sequence[Mapping[str, Any]],
    scores: Scores,
    further: Scores,
    seeds: Seeds,
    fixed: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Return every claim with its criterion in words, the differences by seed, and a verdict.

    Args:
        claims: of a plan.
        scores: by row and task, one per seed, 0 to 1.
        further: by row and `task: score`, one per seed, as they are.
        seeds: of each row, in the order of its scores.
        fixed: rows in which nothing is drawn.

    Raises:
        SystemExit: a claim has an unknown key, or names a task that no row has.
    """
    settled = []
    for claim in claims:
        unknown = sorted(set(claim) - set(KEYS))
        if unknown:
            raise SystemExit(
                f"claim {claim.get('claim')!r}: unknown keys {', '.join(unknown)}; known: {', '.join(KEYS)}"
            )
        settled.append(_settle(claim, scores, further, seeds, fixed))
    return settled


def _settle(
    claim: Mapping[str, Any], scores: Scores, further: Scores, seeds: Seeds, fixed: Collection[str]
) -> dict[str, Any]:
    task, by, other = claim["task"], float(claim.get("by", 0.0)), claim["than"]
    ours = _values(claim["better"], task, scores, further)
    number = isinstance(other, int | float)
    than_task = claim.get("than_task", task)
    theirs = [float(other)] if number else _values(other, than_task, scores, further)
    side = "below" if claim.get("lower") else "above"
    criterion = f"{task}: {claim['better']} {side} {other:g}" if number else f"{task}: {claim['better']} {side} {other}"
    criterion += f", {than_task}" if than_task != task else ""
    criterion += f" by more than {by:g}, every seed" if by else ", every seed"
    words = f"{claim['claim']} ({claim['added']})" if "added" in claim else claim["claim"]
    found: dict[str, Any] = {**claim, "claim": words, "criterion": criterion, "differences": []}
    if not ours or not theirs:
        return {**found, "found": "", "verdict": "not measured"}
    if number or other in fixed:
        pairs = [(value, theirs[0]) for value in ours]
    elif claim["better"] in fixed:
        pairs = [(ours[0], value) for value in theirs]
    else:
        mine = dict(zip(seeds[claim["better"]], ours, strict=True))
        pairs = [(mine[seed], value) for seed, value in zip(seeds[other], theirs, strict=True) if seed in mine]
    pairs = [pair for pair in pairs if not any(math.isnan(value) for value in pair)]  # a score that does not apply
    if not pairs:
        return {**found, "found": "no seed in common", "verdict": "not measured"}
    sign = -1 if claim.get("lower") else 1
    differences = [sign * (one - another) for one, another in pairs]
    verdict = "not resolved"
    if all(difference > by for difference in differences):
        verdict = "holds"
    elif all(difference < -by for difference in differences):
        verdict = "reversed"
    drawn = [row for row in (claim["better"], other) if isinstance(row, str) and row not in fixed]
    if len(differences) == 1 and drawn and verdict != "not resolved":
        verdict += ", one seed"
    mean, least, most = statistics.fmean(differences), min(differences), max(differences)
    said = ("lower by " if sign < 0 else "") + f"{mean:+.1f}"
    said += f" ({least:+.1f} to {most:+.1f} over {len(differences)} seeds)" if len(differences) > 1 else " (one seed)"
    return {**found, "differences": differences, "found": said, "verdict": verdict}


def _values(row: str, task: str, scores: Scores, further: Scores) -> list[float]:
    """Return a row's scores by seed; none where the row was not run."""
    for table, factor in ((scores, 100.0), (further, 1.0)):
        if row in table and task in table[row]:
            return [factor * float("nan" if value is None else value) for value in table[row][task]]
    if row in scores:
        raise SystemExit(
            f"a claim names the task {task!r}; there are {', '.join([*scores[row], *further.get(row, {})])}"
        )
    return []
