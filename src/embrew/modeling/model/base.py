"""The language model under an encoder, by name."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["asset", "hub", "folder"]


@dataclass(frozen=True)
class Base:
    """A machine-independent identifier of the base model.

    Attributes:
        kind: `asset` (shipped with embrew), `hub`, or `folder` (a local one, without a public name).
        name: `nano`, the Hub id, or the folder's own name.
        revision: the Hub commit.
        sha256: of the weight files, for assets and folders.
    """

    kind: Kind
    name: str
    revision: str | None = None
    sha256: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)
