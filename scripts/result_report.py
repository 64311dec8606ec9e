"""The report of the papers' orderings, as parts of pages. Used by `result_tables.py`.

A page holds `<!-- orderings: PART -->` and `<!-- /orderings -->`; PART is `counts`, `summary`, `details` or a method.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from result_orderings import PLACES, Ordering
from verdicts import AGAINST, FOR, NOT_RUN, OPEN, REPRODUCED, VERDICTS

HELD = re.compile(r"<!-- orderings: ([\w ]+) -->\n.*?<!-- /orderings -->", re.DOTALL)


@dataclass(frozen=True)
class Report:
    """All orderings."""

    orderings: tuple[Ordering, ...]

    def problems(self) -> list[str]:
        """Return every verdict without a sentence that explains it."""
        found = ((one.number, place.problem()) for one in self.orderings for place in one.places)
        return [f"ordering {number}, {problem}" for number, problem in found if problem]

    def written(self, text: str, prefix: str | None) -> str:
        """Return a page's text with its parts of the report written anew, with links to the report at `prefix`.

        Raises:
            ValueError: the page names no part of the report.
        """

        def part(found: re.Match[str]) -> str:
            name = found[1]
            methods = dict.fromkeys(one.method for one in self.orderings)
            if name == "counts":
                body = self.counts()
            elif name == "details":
                body = "\n\n".join(one.details() for one in self.orderings)
            elif name == "summary" or name in methods:
                body = self.summary(prefix, None if name == "summary" else name)
            else:
                raise ValueError(f"no orderings {name!r}; there are counts, summary, details, {', '.join(methods)}")
            return f"<!-- orderings: {name} -->\n\n{body}\n\n<!-- /orderings -->"

        return HELD.sub(part, text)

    def counts(self) -> str:
        """Return how many orderings have which verdict."""
        lines = [f"| {len(self.orderings)} orderings | {' | '.join(VERDICTS)} |", "|---|" + "---:|" * len(VERDICTS)]
        for name in PLACES:
            places = [place for one in self.orderings for place in one.places if place.name == name]
            verdicts = Counter(place.verdict() for place in places)
            parts = sum(bool(place.part) and place.verdict() == REPRODUCED for place in places)
            cells = [f"{verdicts[verdict]}" for verdict in VERDICTS]
            cells[0] += f", of which {parts} in part" if parts else ""
            lines.append(f"| {self.models(name)} | {' | '.join(cells)} |")
        for name, shown in PLACES.items():
            single = [c for one in self.orderings for place in one.places if place.name == name for c in place.compared]
            outcomes = [comparison.outcome() for comparison in single]
            results = Counter(outcome.result for outcome in outcomes)
            signs = Counter(outcome.result for outcome in outcomes if outcome.by_sign)
            cells = [
                f"{results[found]}" + (f", of which {signs[found]} by sign alone" if signs[found] else "")
                for found in (FOR, AGAINST, OPEN, NOT_RUN)
            ]
            lines.append(f"| single comparisons, {shown}: for, against, open, not run | {' | '.join(cells)} |")
        return "\n".join(lines)

    def models(self, name: str) -> str:
        """Return what the verdicts of a place were measured on, with the orderings for which it is another model."""
        others: dict[str, list[int]] = {}
        for one in self.orderings:
            for place in one.places:
                if place.name == name and place.shown != PLACES[name]:
                    others.setdefault(place.shown, []).append(one.number)
        said = "; ".join(f"{', '.join(map(str, numbers))}: {shown}" for shown, numbers in others.items())
        return PLACES[name] + (f" ({said})" if said else "")

    def summary(self, prefix: str | None, method: str | None) -> str:
        """Return the table of claims and verdicts, of all methods or of one."""
        chosen = [one for one in self.orderings if method in (None, one.method)]
        heads = [self.models(name) if method is None else chosen[0].places[i].shown for i, name in enumerate(PLACES)]
        lines = [f"| | claim | paper | {' | '.join(heads)} |", "|---|---|---|---|---|"]
        for one in chosen:
            claim = one.claim if method else f"{one.method}: {one.claim}"
            link = f"{one.number}" if prefix is None else f"[{one.number}]({prefix}#ordering-{one.number})"
            lines.append(f"| {' | '.join([link, claim, one.paper, *(place.cell() for place in one.places)])} |")
        return "\n".join(lines)
