"""Losses: pure functions of tensors, independent of models."""

from embrew.losses.bag import bag_of_words_nll
from embrew.losses.conditional_alignment import conditional_alignment_loss
from embrew.losses.contrastive import closer_than_positive, info_nce, same_text_mask, score_kl
from embrew.losses.dependencies import compression_target
from embrew.losses.espresso import compression_loss, layer_weights
from embrew.losses.ranking import angle, angle_similarity, cosent, pair_ranking
from embrew.losses.vocabulary import token_divergences, token_kl, token_log_probs, token_nll

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
    "layer_weights",
    "pair_ranking",
    "same_text_mask",
    "score_kl",
    "token_divergences",
    "token_kl",
    "token_log_probs",
    "token_nll",
]
