"""Score what a language model predicts of a target after what it read: its memory, or the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from embrew.encoder import Encoder
from embrew.generation import Bos, Source, check_can_generate
from embrew.model.attention import Attention
from embrew.model.batching import plan_batches
from embrew.model.frozen import FrozenLM
from embrew.text.texts import target_ids
from embrew.text.tokens import Row, Segment, Tokens

SCORED = 256  # rows of logits at a time


def target_rows(
    encoder: Encoder, texts: Sequence[str], targets: Sequence[str], *, instruction: str, max_tokens: int, limit: int
) -> list[Row]:
    """Return rows of texts, as the encoder reads them, followed by their targets.

    A target that is not truncated ends with EOS, where the tokenizer has one.
    """
    end = [] if encoder.tokenizer.eos_token_id is None else [encoder.tokenizer.eos_token_id]
    encoded = encoder.tokenizer(
        list(targets), add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False
    )
    read = encoder.template.rows(texts, instruction=instruction, max_length=max_tokens)
    return [
        row + Row.labelled(target_ids(ids, end=end, limit=limit), Segment.TARGET)
        for row, ids in zip(read, encoded["input_ids"], strict=True)
    ]


def target_scores(
    encoder: Encoder, rows: Sequence[Row], *, source: Source, bos: Bos = "visible", batch_tokens: int = 4096
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each row's target, token by token: −log p `(tokens,)` in float32, and whether it is the likeliest one.

    Args:
        encoder: a causal LM under causal attention.
        rows: as `target_rows` makes them.
        source: `memory`: the target is blind to the text; `text`: it reads all before it.
        bos: whether the target attends to BOS too.
        batch_tokens: padded tokens per batch.
    """
    check_can_generate(encoder, source)
    attention = Attention("causal", bottleneck=bos) if source == "memory" else Attention("causal")
    return scores_under(encoder, rows, attention, batch_tokens=batch_tokens)


def scores_under(
    encoder: Encoder, rows: Sequence[Row], attention: Attention, *, batch_tokens: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each row's target as `target_scores` does, under an attention."""
    head = FrozenLM(encoder.backbone.causal_lm).head
    bias = None if head.bias is None else head.bias.float()
    head = head._replace(weight=head.weight.float(), bias=bias)  # logits are not rounded to the states' precision
    scores: list[tuple[Tensor, Tensor] | None] = [None] * len(rows)
    for group in plan_batches([len(row.ids) for row in rows], batch_size=1, batch_tokens=batch_tokens):
        tokens = Tokens.pad([rows[i] for i in group]).to(encoder.device)
        with torch.inference_mode():
            states = encoder.backbone.hidden_states(tokens, attention)[tokens.predicting(Segment.TARGET)]
            labels = tokens.input_ids[tokens.where(Segment.TARGET)]
            losses, right = [], []
            for some, wanted in zip(states.split(SCORED), labels.split(SCORED), strict=True):
                logits = head.logits(some.float())
                losses.append(nn.functional.cross_entropy(logits, wanted, reduction="none"))
                right.append(logits.argmax(-1) == wanted)
        counts = tokens.where(Segment.TARGET).sum(1).tolist()
        parts = zip(torch.cat(losses).cpu().split(counts), torch.cat(right).cpu().split(counts), strict=True)
        for i, part in zip(group, parts, strict=True):
            scores[i] = part
    return (part for part in scores if part is not None)
