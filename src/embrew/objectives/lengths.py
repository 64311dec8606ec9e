"""The longest row of an objective that puts a target behind what is read, against the positions of the model."""

from __future__ import annotations

from embrew.modeling.encoder import Encoder


def check_target_fits(encoder: Encoder, before: int, target: int, *, read: str = "the text that is read") -> None:
    """Raise where the longest row of a target has more tokens than the model has positions.

    Args:
        encoder: whose model reads the row.
        before: most tokens before the target.
        target: most tokens of the target, its end included.
        read: names the tokens before the target.

    Raises:
        ValueError: it has; says the length limits, and what to lower.
    """
    limits = ", ".join(f"max_length.{side}={limit}" for side, limit in encoder.max_length.items())
    encoder.backbone.check_longest(
        before + target,
        f"{limits}: {read} (up to {before} tokens) and the target behind (up to {target}) come to {before + target}",
        "lower encoder.max_length (document limits targets), so that both fit into one row",
    )
