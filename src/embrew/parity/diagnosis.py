"""From measured vectors to a verdict: equal, or different and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embrew.export.wrong_vectors import CHOSEN
from embrew.modeling.storage.verification import TEXTS
from embrew.parity.conditions import BATCHES, LONG, NAMED, Key, Measurements
from embrew.parity.faults import Cause, cause_of, truncated_length
from embrew.parity.reference import Reference
from embrew.parity.vectors import Agreement, agreement, lowest_of, norms

MARGIN = 2.0  # a fault is named if its vectors are nearer than those of all others by this factor
CLEAR = 4.0  # the same, against the right vectors where these are within the tolerance
NOISE = 1e-6  # mean distance (1 - cosine) below which vectors are the same
TOO_NEAR = 1e-5  # mean distance from which a fault within the tolerance is named
ALIKE = 0.97  # mean cosine from which vectors that no fault explains can be those of less precise weights
SPECIAL = TEXTS[10]  # holds names of special tokens, which Rust tokenizers read as tokens in any text
LENGTH = 0.01  # largest relative difference of the lengths of vectors


@dataclass(frozen=True)
class Verdict:
    """What a comparison found.

    Attributes:
        equal: whether the runtime gives the reference vectors.
        sentence: in words.
        causes: of the difference, by what was measured; alternatives that cannot be told apart are one entry each in
            `alternatives`.
        alternatives: whether the causes exclude each other.
        notes: what else the user should know.
    """

    equal: bool
    sentence: str
    causes: tuple[Cause, ...] = ()
    alternatives: bool = False
    notes: tuple[str, ...] = ()


def diagnose(
    found: Measurements, reference: Reference, *, min_cosine: float, truncation: Callable[[], int | None]
) -> Verdict:
    """Return the verdict on measured vectors. A cause is named only if its vectors are those that were measured.

    Args:
        found: the measured vectors.
        reference: the vectors that are right, and those under faults.
        min_cosine: mean cosine from which vectors are equal.
        truncation: measures at how many tokens the runtime truncates texts; None: it cannot be told.
    """
    return _Diagnosis(found, reference, min_cosine, truncation).verdict()


class _Diagnosis:
    def __init__(
        self,
        found: Measurements,
        reference: Reference,
        min_cosine: float,
        truncation: Callable[[], int | None],
    ) -> None:
        self.found, self.reference, self.min_cosine, self.truncation = found, reference, min_cosine, truncation
        self.right = {
            (case.prompt.words, text): vector
            for case in reference.cases
            for text, vector in zip(case.texts, case.vectors, strict=True)
        }
        self.lengths = {
            (case.prompt.words, text): len(ids)
            for case in reference.cases
            for text, ids in zip(case.texts, case.ids, strict=True)
        }
        self.theirs = found.first.vectors
        self.cut = reference.max_length  # where the runtime truncates, once it is known
        self.notes: list[str] = []

    def verdict(self) -> Verdict:
        keys = [key for key in self.theirs if key[1] in CHOSEN]
        causes, alternatives, words = self._of_directions(keys)
        if words:
            short = self._of_short_texts()
            return Verdict(False, f"different: {short[0].words}", tuple(short)) if short else Verdict(False, words)
        more = [*self._of_shape(explained=not causes), *self._of_names(), *self._of_batches()]
        if not causes:
            more += [*self._of_length(), *self._of_texts(keys)]
        self._note_refusals()
        if not causes and not more:
            said = f"equal: {self._cosines([key for key in self.theirs if key[1] != SPECIAL])}"
            return Verdict(True, said, notes=tuple(self.notes))
        text = " or ".join(cause.words for cause in causes)
        text = f"ambiguous: {text}" if alternatives else text
        sentence = "; ".join([*([text] if text else []), *[cause.words for cause in more]])
        return Verdict(False, f"different: {sentence}", (*causes, *more), alternatives, tuple(self.notes))

    def _of_directions(self, keys: Sequence[Key]) -> tuple[list[Cause], bool, str]:
        """Return causes by the directions of vectors, whether they exclude each other, or that no cause is known."""
        candidates, keys = self._candidates(keys)
        theirs = np.stack([self.theirs[key] for key in keys])
        close = {name: agreement(theirs, np.stack([each[key] for key in keys])) for name, each in candidates.items()}
        distance = {name: 1 - each.mean for name, each in close.items()}
        accepted = {name for name, each in close.items() if each.reaches(self.min_cosine)}
        best = min(distance.values())
        near = {name for name in candidates if distance[name] <= max(MARGIN * best, best + NOISE)}
        named = near & accepted - {""}
        if "" in accepted and ("" in near or not named or distance[""] < max(TOO_NEAR, best * CLEAR)):
            return [], False, ""
        if "" in near or not named:
            return [], False, self._unknown(keys, nearest_is_right="" in near)
        fewest = min(name.count("+") for name in named)
        causes = [self._cause(name) for name in candidates if name in named and name.count("+") == fewest]
        return causes, len(causes) > 1, ""

    def _candidates(self, keys: Sequence[Key]) -> tuple[dict[str, Mapping[Key, np.ndarray]], list[Key]]:
        """Return vectors by faults, and the texts for which all are known; the right ones are named ""."""
        wrong = self.reference.wrong
        found: dict[str, Mapping[Key, np.ndarray]] = {"": self.right}
        if wrong is not None:
            kept = [key for key in wrong.rows if key in self.theirs]
            if kept:
                for name, vectors in wrong.vectors.items():
                    found[name] = dict(zip(wrong.rows, vectors, strict=True))
                return found, kept
        without = {key: self.right["", key[1]] for key in keys if ("", key[1]) in self.right}
        if len(without) == len(keys) and any(prompt for prompt, _ in keys):
            found["prompt_missing"] = without
        return found, list(keys)

    def _unknown(self, keys: Sequence[Key], *, nearest_is_right: bool) -> str:
        measured, mean = self._cosines(keys), self._agreement(keys).mean
        if nearest_is_right and mean >= ALIKE and self.reference.wrong is not None:
            return (
                f"different: no known fault gives these vectors, and they are nearest to the right ones ({measured}): "
                "weights or arithmetic of lower precision, or a small change; --min-cosine accepts a lower mean"
            )
        if self.reference.wrong is None:
            return (
                f"different: {measured}; an earlier embrew made the export, without the vectors that name a cause: "
                "make it again with embrew export"
            )
        if self._dimensions() != self.reference.dimensions:
            what = f"{self._dimensions()} dimensions instead of {self.reference.dimensions}"
            return f"different: another model: {what}, and no known fault gives these vectors ({measured})"
        return f"different: another model, or other weights: no known fault gives these vectors ({measured})"

    def _of_shape(self, *, explained: bool) -> list[Cause]:
        """Return causes by the number of dimensions and the lengths of vectors; `explained`: directions are right."""
        causes, theirs = [], np.stack(list(self.theirs.values()))
        right = np.stack([self.right[key] for key in self.theirs])
        if theirs.shape[1] != right.shape[1]:
            words = f"{theirs.shape[1]} dimensions instead of {right.shape[1]}"
            causes.append(Cause("dimensions", words))
        lengths, expected = norms(theirs), norms(right)
        other = np.abs(lengths - expected) > np.maximum(LENGTH, 1 - self.min_cosine) * expected
        normalised = bool((np.abs(expected[expected > 0] - 1) < LENGTH).all())
        if other.mean() > 0.5 and (normalised or explained):
            what = "vectors are not normalised" if normalised else "vectors have other lengths"
            wanted = "1" if normalised else f"{expected.min():.3g} to {expected.max():.3g}"
            spread = f"lengths {lengths.min():.3g} to {lengths.max():.3g}"
            causes.append(Cause("norm", f"{what} ({spread} instead of {wanted})"))
        return causes

    def _of_names(self) -> list[Cause]:
        """Return causes by prompts of the runtime, where prompts as words are right or have another fault."""
        named = self.found.conditions.get(NAMED)
        rows = [(key, vector) for key, vector in (named.rows if named else []) if key in self.theirs]
        by_prompt = [
            [row for row in rows if row[0][0] == prompt] for prompt in dict.fromkeys(key[0] for key, _ in rows)
        ]
        wrong = next((each for each in by_prompt if not self._expected(each)), None)
        if wrong is None:
            return []
        name = next(case.prompt.name for case in self.reference.cases if case.prompt.words == wrong[0][0][0])
        bare = [(vector, self.theirs["", key[1]]) for key, vector in wrong if ("", key[1]) in self.theirs]
        if len(bare) == len(wrong) and self._same(*zip(*bare, strict=True)):
            return [Cause("prompt_missing", f"the prompt {name!r} is missing where it is given by name")]
        stored = self.reference.wrong
        doubled = dict(zip(stored.rows, stored.vectors.get("prompt_doubled", ()), strict=False)) if stored else {}
        twice = [(vector, doubled[key]) for key, vector in wrong if key in doubled]
        if twice and len(twice) == len(wrong) and self._same(*zip(*twice, strict=True)):
            return [Cause("prompt_doubled", f"the prompt {name!r} is doubled where it is given by name")]
        return [Cause("prompt_other", f"the runtime has another prompt by the name {name!r}")]

    def _of_batches(self) -> list[Cause]:
        """Return causes by vectors that differ from those of the same texts alone."""
        changed = []
        for name in BATCHES:
            condition = self.found.conditions.get(name)
            rows = [(key, vector) for key, vector in (condition.rows if condition else []) if key in self.theirs]
            if not rows or self._same_as_alone(rows):
                continue
            if self._is_other_order(rows):
                return [Cause("order", "vectors come in another order than the texts of a request")]
            changed.append(name)
        if not changed:
            return []
        fine = [name for name in BATCHES if name not in changed and name in self.found.conditions]
        but = f", not in {' and '.join(fine)}" if fine else ""
        return [Cause("batch", f"vectors depend on the other texts of a request: in {' and '.join(changed)}{but}")]

    def _same_as_alone(self, rows: Sequence[tuple[Key, np.ndarray]]) -> bool:
        """Return whether vectors differ from those of the same texts alone by no more than arithmetic explains."""
        alone = np.stack([self.theirs[key] for key, _ in rows])
        change = agreement(np.stack([vector for _, vector in rows]), alone)
        usual = 1 - agreement(alone, np.stack([self.right[key] for key, _ in rows])).lowest
        return self._expected(rows) and 1 - change.lowest <= max(TOO_NEAR, CLEAR * usual)

    def _expected(self, rows: Sequence[tuple[Key, np.ndarray]]) -> bool:
        """Return whether vectors are right, or those of the same texts alone."""
        given = [vector for _, vector in rows]
        return any(self._same(given, [known[key] for key, _ in rows]) for known in (self.theirs, self.right))

    def _is_other_order(self, rows: Sequence[tuple[Key, np.ndarray]]) -> bool:
        """Return whether the vectors of a request are those of its texts, in another order."""
        alone = np.stack([self.theirs[key] for key, _ in rows])
        given = np.stack([vector for _, vector in rows])
        unit = [each / np.maximum(norms(each), 1e-30)[:, None] for each in (given, alone)]
        order = (unit[0] @ unit[1].T).argmax(1)
        return sorted(order) == list(range(len(rows))) and self._same(given, alone[order])

    def _of_length(self) -> list[Cause]:
        """Return causes by texts beyond the limit, if shorter ones are right."""
        long = self.found.conditions[LONG].vectors
        wrong = {key: vector for key, vector in long.items() if not self._is_right(key, vector)}
        stored, limit = self.reference.wrong, self.reference.max_length
        if not wrong:
            return []
        if stored is not None and stored.long in wrong:
            theirs = wrong[stored.long][None]
            distance = {name: 1 - agreement(theirs, each[None]).mean for name, each in stored.truncated.items()}
            name = min(distance, key=lambda name: distance[name])
            second = min((each for other, each in distance.items() if other != name), default=1.0)
            if distance[name] <= 1 - self.min_cosine and max(MARGIN * distance[name], NOISE) < second:
                self.cut = truncated_length(name) or limit
                return [self._cause(name)]
        cut = self.truncation()
        if cut is None:
            return [Cause("truncated", f"texts of {limit} tokens and more are truncated otherwise, or lose their end")]
        self.cut = cut
        return [Cause("truncated", f"long texts are truncated at about {cut} tokens instead of {limit}")]

    def _of_short_texts(self) -> list[Cause]:
        """Return a cause if only those texts are right that are shorter than where the runtime truncates."""
        cut = self.truncation()
        short = [key for key in self.theirs if cut is not None and self.lengths[key] < cut]
        if cut is None or not short or not self._same(*self._pairs(short)):
            return []
        words = f"texts are truncated at about {cut} tokens instead of {self.reference.max_length}"
        return [Cause("truncated", f"{words}; shorter ones are right")]

    def _of_texts(self, keys: Sequence[Key]) -> list[Cause]:
        """Return a cause by single texts that have other vectors, if plain ones are right."""
        others = [key for key in self.theirs if key not in keys and self.lengths[key] < self.cut]
        wrong = [key for key in others if not self._is_right(key, self.theirs[key])]
        if {text for _, text in wrong} == {SPECIAL}:
            self.notes.append(
                "a text with names of special tokens gets another vector: the runtime reads such names, for example "
                "</s>, as tokens; remove them from texts before they get there"
            )
            return []
        if not wrong:
            return []
        first = f"{wrong[0][1][:40]!r}"
        if any(key in self.found.other_ids for key in wrong):
            what = "has other token ids"
        elif self.found.compared_ids:
            what = "has the same token ids and another vector"
        else:
            what = "has another vector"
        words = f"{len(wrong)} of {len(self.theirs)} texts differ, plain ones do not: the first, {first}, {what}"
        return [Cause("texts", words)]

    def _note_refusals(self) -> None:
        for name, condition in self.found.conditions.items():
            if condition.refused:
                self.notes.append(f"refused ({name}): {condition.refused}")

    def _cause(self, name: str) -> Cause:
        return cause_of(name, limit=self.reference.max_length)

    def _dimensions(self) -> int:
        return len(next(iter(self.theirs.values())))

    def _agreement(self, keys: Sequence[Key]) -> Agreement:
        return agreement(*self._pairs(keys))

    def _pairs(self, keys: Sequence[Key]) -> tuple[np.ndarray, np.ndarray]:
        """Return the runtime's vectors and the right ones."""
        return np.stack([self.theirs[key] for key in keys]), np.stack([self.right[key] for key in keys])

    def _cosines(self, keys: Sequence[Key]) -> str:
        found = self._agreement(keys)
        lowest = f"lowest {found.lowest:.6f}, of {len(keys)} texts; equal from a mean of {self.min_cosine:g}"
        return f"mean cosine {found.mean:.6f}, {lowest}"

    def _is_right(self, key: Key, vector: np.ndarray) -> bool:
        """Return whether the vector of a single text is right, which may be farther away than the mean of several."""
        return agreement(vector[None], self.right[key][None]).lowest >= lowest_of(self.min_cosine)

    def _same(self, found: Sequence[np.ndarray] | np.ndarray, right: Sequence[np.ndarray] | np.ndarray) -> bool:
        return agreement(np.stack(list(found)), np.stack(list(right))).reaches(self.min_cosine)
