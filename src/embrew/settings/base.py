"""The language model under an encoder, by name, and how it is quantised: checked settings. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import GetJsonSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema

from embrew.settings.validation import Config, explain

BLOCK = 64  # weights with one scale


class Quantization(Config):
    """4-bit weights of the linear layers of a frozen base: *QLoRA* (Dettmers et al., 2023), section 3.

    Each block of 64 weights has one scale, the largest absolute value; each weight is the index of the nearest of 16
    numbers. Embeddings, norms, biases and the head keep their dtype.

    Attributes:
        type: `nf4`: the 16 numbers are quantiles of a normal distribution; `fp4`: floating-point numbers of 4 bits.
        double_quant: whether scales are quantised to 8 bits as well, in groups of 256.
    """

    type: Literal["nf4", "fp4"] = "nf4"
    double_quant: bool = True

    @model_validator(mode="before")
    @classmethod
    def _of_name(cls, value: Any) -> Any:
        """Read a type's name as the mapping that holds only this."""
        return {"type": value} if isinstance(value, str) else value

    @classmethod
    def parse(cls, value: str | Mapping[str, Any] | Self) -> Self:
        """Return checked settings from a type's name or a mapping.

        Raises:
            ValueError: an unknown type or key.
        """
        if isinstance(value, cls):
            return value
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            mapping = {"type": value} if isinstance(value, str) else value
            raise ValueError(f"quantization: {explain(error, cls, mapping)}") from None

    def as_dict(self) -> dict[str, Any]:
        """Return the settings for JSON."""
        return self.model_dump()

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON schema: a type's name, or the mapping."""
        resolved = handler.resolve_ref_schema(handler(schema))
        return {"anyOf": [dict(resolved["properties"]["type"]), resolved]}


Kind = Literal["asset", "hub", "folder"]


@dataclass(frozen=True)
class Base:
    """A machine-independent identifier of the base model.

    Attributes:
        kind: `asset` (shipped with embrew), `hub`, or `folder` (a local folder or GGUF file, without a public name).
        name: `nano`, the Hub id, or the last part of the path of the folder or file.
        revision: commit on the Hub.
        sha256: SHA-256 of the weight files, for assets, folders and GGUF files.
        stored_as: type of a GGUF file's weights, such as `Q4_K_M`; None: it is none, or does not say.
        quantization: quantisation of these weights when they are opened; None: they are not quantised.
    """

    kind: Kind
    name: str
    revision: str | None = None
    sha256: str | None = None
    stored_as: str | None = None
    quantization: Quantization | None = None

    def same_weights(self, other: Base) -> bool:
        """Return whether another base has the same weights: by checksum if both have one, else by name and commit."""
        if self.quantization != other.quantization:
            return False
        if self.sha256 is not None and other.sha256 is not None:
            return self.sha256 == other.sha256
        return (self.kind, self.name, self.revision) == (other.kind, other.name, other.revision)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON; `from_dict` reads them back."""
        fields = {name: value for name, value in vars(self).items() if name not in ("stored_as", "quantization")}
        if self.stored_as is not None:
            fields["stored_as"] = self.stored_as
        if self.quantization is not None:
            fields["quantization"] = self.quantization.as_dict()
        return fields

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Return the base of what `as_dict` gave."""
        settings = saved.get("quantization")
        return cls(**{**saved, "quantization": None if settings is None else Quantization.parse(settings)})
