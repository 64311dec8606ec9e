"""Licences of the base model and of the training data: read off the card, or given; never guessed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from huggingface_hub import ModelCard

from embrew.hub.publication import Publication

KEY = "data_licenses"  # of the card's metadata: licence by data set
SHIPPED = {"nano": "apache-2.0"}
UNNAMED = "training data"  # of an encoder that does not say what it was trained on
HEADING = "## Licences"
PATTERN = re.compile(r"[a-z0-9][a-z0-9.+-]*")


@dataclass(frozen=True)
class Licences:
    """Identifiers as the Hub has them (`apache-2.0`); None: not known.

    Attributes:
        base: name of the base model.
        of_base: its licence, which the card gives for the model.
        of_data: licence by data set.
    """

    base: str
    of_base: str | None
    of_data: Mapping[str, str | None]

    def missing(self) -> Iterator[str]:
        """Yield what has no known licence."""
        if self.of_base is None:
            yield f"base {self.base}"
        yield from (name for name, found in self.of_data.items() if found is None)


def known_licences(found: Publication, *, base: str | None = None, data: Sequence[str] = ()) -> Licences:
    """Return the licences that are given, and else those that the card's metadata have.

    Args:
        found: what is published.
        base: licence of the base model.
        data: `NAME=LICENCE` for a data set, or one `LICENCE` for all.

    Raises:
        ValueError: a name is none of the data sets, or a licence is no identifier.
    """
    card = ModelCard(found.card, ignore_metadata_errors=True).data.to_dict()
    in_card = card.get(KEY) or {}
    of_data = {name: in_card.get(name) for name in ((UNNAMED,) if found.data is None else found.data)}
    for entry in data:
        name, named, licence = entry.rpartition("=")
        if named and name not in of_data:
            sets = ", ".join(of_data) or "none: it was not trained"
            raise ValueError(f"--data-license {entry}: {name!r} is none of the training data ({sets})")
        of_data.update(dict.fromkeys([name] if named else of_data, _checked(licence)))
    of_base = card.get("license") or SHIPPED.get(found.base) if base is None else _checked(base)
    return Licences(found.base, of_base, of_data)


def complete(licences: Licences, ask: Callable[[str], str] | None) -> Licences:
    """Return the licences with those that are not known asked for.

    Args:
        licences: what is known.
        ask: asks the user for the licence of the base or of a data set; None: the user cannot be asked.

    Raises:
        ValueError: a licence is not known and cannot be asked for, or the answer is no identifier.
    """
    missing = list(licences.missing())
    if not missing:
        return licences
    if ask is None:
        raise ValueError(
            f"the licence of {', '.join(missing)} is not known; look it up, and give --license for the base and "
            "--data-license NAME=LICENCE for a data set, with the Hub's identifiers (apache-2.0, mit, cc-by-4.0, other)"
        )
    of_base = licences.of_base or _checked(ask(f"base {licences.base}"))
    of_data = {name: found or _checked(ask(name)) for name, found in licences.of_data.items()}
    return Licences(licences.base, of_base, of_data)


def published_card(found: Publication, licences: Licences, repo: str) -> str:
    """Return the card with the licences, in metadata and text, and with the repository's name in its examples."""
    card = ModelCard(found.card, ignore_metadata_errors=True)
    card.data["license"] = licences.of_base
    if licences.of_data:
        card.data[KEY] = dict(licences.of_data)
    before, _, rest = card.text.partition(f"\n{HEADING}\n")
    after = rest[rest.index("\n## ") :] if "\n## " in rest else ""
    rows = [(f"base {licences.base}", licences.of_base), *licences.of_data.items()]
    table = "\n".join(["| of | licence |", "|---|---|", *(f"| {what} | {licence} |" for what, licence in rows)])
    text = f"{before.rstrip()}\n{after.rstrip()}\n\n{HEADING}\n\n{table}\n"
    download = f'snapshot_download("{repo}")'
    replaced = {
        "from embrew import Encoder\n": "from embrew import Encoder\nfrom huggingface_hub import snapshot_download\n",
        'Encoder.from_pretrained("PATH")': f"Encoder.from_pretrained({download})",
        'SentenceTransformer("PATH")': f'SentenceTransformer("{repo}")',
    }
    for was, becomes in replaced.items():
        text = text.replace(was, becomes)
    card.text = text
    return str(card)


def _checked(licence: str) -> str:
    """Return a licence's identifier.

    Raises:
        ValueError: it is none.
    """
    if PATTERN.fullmatch(licence) is None:
        raise ValueError(f"licence {licence!r}; give an identifier of the Hub: apache-2.0, mit, cc-by-4.0, other, ...")
    return licence
