"""The language model under an encoder, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from embrew.modeling.settings.quantization import Quantization

Kind = Literal["asset", "hub", "folder"]


@dataclass(frozen=True)
class Quantized:
    """How a base was quantised, and what came out.

    Attributes:
        settings: how.
        sha256: of the blocks of all layers.
    """

    settings: Quantization
    sha256: str


@dataclass(frozen=True)
class Base:
    """A machine-independent identifier of the base model.

    Attributes:
        kind: `asset` (shipped with embrew), `hub`, or `folder` (a local one, without a public name).
        name: `nano`, the Hub id, or the folder's own name.
        revision: the Hub commit.
        sha256: of the weight files, for assets and folders.
        quantization: what was made of these weights when they were opened; None: nothing.
    """

    kind: Kind
    name: str
    revision: str | None = None
    sha256: str | None = None
    quantization: Quantized | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON; `from_dict` reads them back."""
        found = {name: value for name, value in vars(self).items() if name != "quantization"}
        if self.quantization is not None:
            found["quantization"] = {**self.quantization.settings.as_dict(), "sha256": self.quantization.sha256}
        return found

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Return the base of what `as_dict` gave."""
        made = saved.get("quantization")
        if made is None:
            return cls(**saved)
        settings = Quantization.of({key: value for key, value in made.items() if key != "sha256"})
        return cls(**{**saved, "quantization": Quantized(settings, str(made["sha256"]))})
