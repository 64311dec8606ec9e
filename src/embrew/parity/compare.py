"""Compare a runtime with an encoder or export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from embrew.parity.conditions import Key, Measurements, measure
from embrew.parity.diagnosis import Verdict, diagnose
from embrew.parity.reference import Reference, export_limit, reference_of_encoder, reference_of_export
from embrew.parity.runtimes import Kind, open_runtime
from embrew.parity.runtimes.embrew import EmbrewServer
from embrew.parity.tolerance import Tolerance, tolerance
from embrew.parity.truncation import truncated_at
from embrew.parity.vectors import Agreement, agreement
from embrew.progress import progress
from embrew.storage.base_model import quiet


@dataclass(frozen=True)
class Line:
    """The vectors of one condition, compared with the reference.

    Attributes:
        condition: how texts were sent.
        prompt: name of the prompt; "" without one.
        texts: how many.
        agreement: cosines and the largest difference; None: the runtime refused all texts.
    """

    condition: str
    prompt: str
    texts: int
    agreement: Agreement | None


@dataclass(frozen=True)
class Comparison:
    """What a comparison measured and found.

    Attributes:
        reference: name of the encoder or export.
        runtime: name of the runtime.
        tolerance: cosine that every text has to reach, and why.
        lines: one per condition and prompt.
        token_ids: number of texts whose token ids were compared, and of those with other ids.
        verdict: equal, or different and why.
    """

    reference: str
    runtime: str
    tolerance: Tolerance
    lines: list[Line]
    token_ids: dict[str, int]
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        verdict = self.verdict
        causes = [
            {"faults": cause.faults.split("+"), "kinds": cause.kinds, "words": cause.words} for cause in verdict.causes
        ]
        return {
            "reference": self.reference,
            "runtime": self.runtime,
            "equal": verdict.equal,
            "verdict": verdict.sentence,
            "causes": causes,
            "ambiguous": verdict.alternatives,
            "notes": list(verdict.notes),
            "min_cosine": self.tolerance.min_cosine,
            "assumed_weights": self.tolerance.weights or None,
            "token_ids": self.token_ids,
            "conditions": [
                {
                    "condition": line.condition,
                    "prompt": line.prompt,
                    "texts": line.texts,
                    **(asdict(line.agreement) if line.agreement else {}),
                }
                for line in self.lines
            ],
        }


def compare(
    a: str,
    against: str,
    *,
    kind: str | None = None,
    model: str | None = None,
    timeout: float = 60.0,
    min_cosine: float | None = None,
    max_length: int | None = None,
    pooling: str | None = None,
    show_progress_bar: bool = False,
) -> Comparison:
    """Compare the vectors of a runtime with those of an encoder or export, and name the cause of a difference.

    Args:
        a: an encoder, as `open_model` takes it, or folder of an export with `parity.json`, whose model is not opened.
        against: folder, file or address of the runtime; see `open_runtime`.
        kind: of the runtime, a name of `Kind`; None: by its name and what is there.
        model: name of the model on a server of several.
        timeout: seconds to wait for an answer of a server.
        min_cosine: cosine that the vector of every text has to reach; None: by the weights that are compared, 0.9999
            for float32, 0.999 for 16 bits, 0.99 for fewer.
        max_length: limit in tokens of the runtime, where the encoder has different ones for queries and documents;
            None: that of the export that is compared.
        pooling: of a language model without embedding settings, as `open_model` takes it.
        show_progress_bar: show one.

    Raises:
        FileNotFoundError: no such file, folder or model.
        ValueError: there are no reference vectors, or the runtime gives no vectors; the message says why.
    """
    if min_cosine is not None and not 0 < min_cosine <= 1:
        raise ValueError(f"min_cosine={min_cosine}; give a cosine above 0, at most 1")
    chosen = None if kind is None else Kind(kind)
    with quiet():
        export = reference_of_export(a)
    with quiet():
        runtime = open_runtime(against, kind=chosen, model=model, timeout=timeout)
    if export is not None and (max_length or pooling):
        raise ValueError(f"{a} is an export, whose vectors are known; leave out max_length and pooling")
    with quiet():
        how: Any = {"max_length": max_length or export_limit(against), "pooling": pooling}
        reference = export or reference_of_encoder(a, by_methods=isinstance(runtime, EmbrewServer), **how)
    limit = tolerance(reference, runtime, against) if min_cosine is None else Tolerance(min_cosine, "")
    with progress(None, "compare", "text", shown=show_progress_bar) as bar:
        found = measure(runtime, reference, progress=bar.update)
    verdict = diagnose(
        found, reference, min_cosine=limit.min_cosine, truncation=lambda: truncated_at(runtime, reference)
    )
    ids = {"compared": found.compared_ids, "different": len(found.other_ids)}
    return Comparison(reference.name, runtime.name, limit, _lines(found, reference), ids, verdict)


def _lines(found: Measurements, reference: Reference) -> list[Line]:
    """Return one line per condition and prompt."""
    names = {case.prompt.words: case.prompt.name or "" for case in reversed(reference.cases)}
    right = {
        (case.prompt.words, text): vector
        for case in reference.cases
        for text, vector in zip(case.texts, case.vectors, strict=True)
    }
    lines = []
    for condition in found.conditions.values():
        prompts = list(dict.fromkeys(prompt for (prompt, _), _ in condition.rows))
        for prompt in prompts:
            rows = [(key, vector) for key, vector in condition.rows if key[0] == prompt]
            name = names[prompt] if prompt else ""
            lines.append(Line(condition.condition, name, len(rows), _agreement(rows, right)))
        if not prompts and condition.refused:
            lines.append(Line(condition.condition, "", 0, None))
    return lines


def _agreement(rows: list[tuple[Key, np.ndarray]], right: Mapping[Key, np.ndarray]) -> Agreement:
    return agreement(np.stack([vector for _, vector in rows]), np.stack([right[key] for key, _ in rows]))
