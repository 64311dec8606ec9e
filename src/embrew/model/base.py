"""The language model under an encoder, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from embrew.settings.quantization import Quantization

Kind = Literal["asset", "hub", "folder"]


@dataclass(frozen=True)
class Base:
    """A machine-independent identifier of the base model.

    Attributes:
        kind: `asset` (shipped with embrew), `hub`, or `folder` (a local one, without a public name).
        name: `nano`, the Hub id, or the folder's own name.
        revision: the Hub commit.
        sha256: of the weight files, for assets and folders.
        quantization: how these weights are quantised when they are opened; None: they are not.
    """

    kind: Kind
    name: str
    revision: str | None = None
    sha256: str | None = None
    quantization: Quantization | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON; `from_dict` reads them back."""
        found = {name: value for name, value in vars(self).items() if name != "quantization"}
        if self.quantization is not None:
            found["quantization"] = self.quantization.as_dict()
        return found

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Return the base of what `as_dict` gave."""
        settings = saved.get("quantization")
        return cls(**{**saved, "quantization": None if settings is None else Quantization.of(settings)})
