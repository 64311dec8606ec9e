"""How a frozen base model is quantised: checked settings, for recipes, constructors and saved folders. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema

from embrew.config.validation import explain

BLOCK = 64  # weights with one scale
GROUP = 256  # scales with one scale of their own, where scales are quantised too


class Quantization(BaseModel):
    """4-bit weights of the linear layers of a frozen base: *QLoRA* (Dettmers et al., 2023), section 3.

    Each block of 64 weights has one scale, the largest absolute value; each weight is the index of the nearest of 16
    numbers. Embeddings, norms, biases and the head keep their dtype.

    Attributes:
        type: `nf4`: the 16 numbers are quantiles of a normal distribution; `fp4`: floating-point numbers of 4 bits.
        double_quant: scales are quantised to 8 bits as well, in groups of 256.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    type: Literal["nf4", "fp4"] = "nf4"
    double_quant: bool = True

    @model_validator(mode="before")
    @classmethod
    def _of_name(cls, given: Any) -> Any:
        """Read a type's name as the mapping that holds only this."""
        return {"type": given} if isinstance(given, str) else given

    @classmethod
    def of(cls, given: str | Mapping[str, Any] | Self) -> Self:
        """Return checked settings from a type's name or a mapping.

        Raises:
            ValueError: an unknown type or key.
        """
        if isinstance(given, cls):
            return given
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            found = {"type": given} if isinstance(given, str) else given
            raise ValueError(f"quantization: {explain(error, cls, found)}") from None

    @property
    def bits_per_weight(self) -> float:
        """Bits of memory per quantised weight, its share of the scales included: 4.127, or 4.5 without double_quant.

        >>> [round(Quantization(double_quant=double).bits_per_weight, 3) for double in (True, False)]
        [4.127, 4.5]
        """
        return 4 + (8 / BLOCK + 32 / (BLOCK * GROUP) if self.double_quant else 32 / BLOCK)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings for JSON."""
        return self.model_dump()

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON schema: a type's name, or the mapping."""
        found = handler.resolve_ref_schema(handler(schema))
        return {"anyOf": [dict(found["properties"]["type"]), found]}
