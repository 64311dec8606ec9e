"""Losses: pure functions of tensors, independent of models."""

from embrew.losses.contrastive import (
    angle,
    angle_similarity,
    closer_than_positive,
    cosent,
    info_nce,
    labelled_mask,
    pair_ranking,
    same_text_mask,
    score_kl,
    spread_out,
)
from embrew.losses.espresso import compression_loss, compression_target, layer_weights
from embrew.losses.vocabulary import (
    bag_of_words_nll,
    conditional_alignment_loss,
    token_divergences,
    token_kl,
    token_log_probs,
    token_nll,
)

__all__ = [
    "angle",
    "angle_similarity",
    "bag_of_words_nll",
    "closer_than_positive",
    "compression_loss",
    "compression_target",
    "conditional_alignment_loss",
    "cosent",
    "info_nce",
    "labelled_mask",
    "layer_weights",
    "pair_ranking",
    "same_text_mask",
    "score_kl",
    "spread_out",
    "token_divergences",
    "token_kl",
    "token_log_probs",
    "token_nll",
]
