"""The computation of an encoder from token ids to one vector per text: a plain model, and traceable modules of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from embrew.encoder import Encoder
from embrew.model.attention import has_own_window
from embrew.model.layers import is_bert_type, with_configuration
from embrew.model.pooling import embed, pooled_positions
from embrew.text.tokens import Segment, Tokens

OUTPUT = "sentence_embedding"


def merged_model(encoder: Encoder, ids: dict[int, int], vocabulary: int) -> PreTrainedModel:
    """Return a copy of the model without head, adapter merged, memory tokens in its embedding matrix.

    Of a quantised model, it has the dequantised weights, which training saw, and not those of the original.
    """
    backbone = copy.deepcopy(encoder.backbone)
    if backbone.is_quantized:
        backbone.to("cpu").dequantize()  # whole weights, for which an accelerator may have no room
    else:
        backbone.merge_adapter()
    model = backbone.inner
    rows = model.get_input_embeddings().weight.shape[0]
    if vocabulary > rows:
        model.resize_token_embeddings(vocabulary, mean_resizing=False)
        if getattr(model, "hidden_size_per_layer_input", None):  # learned tokens have the padding token's
            per_layer = model.embed_tokens_per_layer.weight.data
            per_layer[rows:] = per_layer[getattr(model.config, "pad_token_id", None) or 0]
    if backbone.learned:
        weight = model.get_input_embeddings().weight
        learned = torch.cat(list(backbone.learned.values()))
        with torch.no_grad():
            for learned_id, row in ids.items():
                weight[row] = learned[learned_id - rows].to(weight.dtype)
    if not encoder.backbone.is_bert_type:
        _declare_attention(model.config, causal=encoder.attention.is_causal is not False)
    return model


def write_rows(model: PreTrainedModel, rows: Mapping[int, Tensor]) -> None:
    """Write input embeddings, by their ids, into a model's embedding matrix, which has room for them."""
    embedding = cast(nn.Embedding, model.get_input_embeddings())
    scale = getattr(embedding, "scalar_embed_scale", 1.0)  # Gemma scales its embeddings by sqrt(hidden)
    with torch.no_grad():
        for token_id, vector in rows.items():
            embedding.weight[token_id] = (vector.float() / scale).to(embedding.weight.dtype)


def _declare_attention(config: PreTrainedConfig, *, causal: bool) -> None:
    """Write the direction of attention into a configuration, under both names that servers read.

    transformers and vLLM read `is_causal`; Text Embeddings Inference reads `use_bidirectional_attention`. Gemma's own
    configurations have that field already, and in Gemma 3 it changes the sliding window too, so it stays as it is.
    """
    if has_own_window(config) and not causal:
        return
    config.is_causal = causal
    if not hasattr(type(config), "use_bidirectional_attention"):
        config.use_bidirectional_attention = not causal


class LabelledGraph(nn.Module):
    """Pooled vectors of labelled tokens; contains the attention mask, the head and the pooling.

    The mask is computed in the graph, from the labels, and given to the model explicitly, sliding windows included:
    the result does not depend on how a model's own code treats padding while it is traced. Right padding only.

    Args:
        encoder: attention, pooling and head are taken from it.
        model: the transformers model without head, adapter merged, learned tokens in its embedding matrix
            (`merged_model`). It is converted to float32 in place, and moved to the CPU.
    """

    def __init__(self, encoder: Encoder, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = with_configuration(model, is_causal=encoder.attention.is_causal is not False)
        self.attention = encoder.attention
        self.pooling = encoder.pooling
        self.head, self.center = copy.deepcopy(encoder.head), copy.deepcopy(encoder.center)
        self.slots = encoder.pooled_dimensions // (
            encoder.pooling.projection or encoder.backbone.hidden_size
        )  # concatenated
        self.numbers_itself = is_bert_type(model)  # RoBERTa's positions begin after that of padding
        self.float().cpu().eval().requires_grad_(False)

    def forward(self, input_ids: Tensor, segment_ids: Tensor) -> Tensor:
        """Return pooled vectors, float32 `(batch, width)`, neither truncated nor normalised.

        Args:
            input_ids: `(batch, tokens)` int64; learned tokens by their rows in the model's embedding matrix.
            segment_ids: `(batch, tokens)` int64, values of `Segment`; 0 is padding.
        """
        tokens = Tokens(input_ids, segment_ids)
        embedded = self.model.get_input_embeddings()(input_ids)
        position_ids = None if self.numbers_itself else torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        states = self.model(
            inputs_embeds=embedded,
            attention_mask=self.attention.mask(self._seen(tokens), self.model.config, embedded.dtype),
            position_ids=position_ids,
            use_cache=False,
        ).last_hidden_state
        if self.pooling.mode == "concat":
            vectors = self._concatenated(states if self.head is None else self.head(states), tokens)
        else:
            vectors = embed(self.head, self.pooling, states, tokens)
        return vectors if self.center is None else self.center(vectors)

    def _seen(self, tokens: Tokens) -> Tokens:
        """Return what the mask is made of; under causal attention one row for all, since no text reads padding."""
        if not self.attention.is_causal:
            return tokens
        return Tokens(tokens.input_ids[:1], torch.full_like(tokens.segment_ids[:1], int(Segment.TEXT)))

    def _concatenated(self, states: Tensor, tokens: Tokens) -> Tensor:
        """Concatenate the chosen states without indices that depend on values: each is a sum with one weight of 1."""
        pooled = pooled_positions(self.pooling, tokens)
        rank = pooled.long().cumsum(-1)
        numbers = torch.arange(1, self.slots + 1, device=rank.device)
        selection = (pooled[:, None] & (rank[:, None] == numbers[:, None])).float()
        return (selection @ states.float()).flatten(1)


class SentenceGraph(nn.Module):
    """Final vectors of token ids: an encoder in its fixed form as other software runs it.

    Labels follow from the ids and the template: memory tokens have ids of their own, and with pooling over the text,
    the template's tokens are the first and last of every row.

    Args:
        encoder: in its fixed form: one template, always the same memory tokens.
        model: as of `LabelledGraph`.
        ids: id in the tokenizer of every learned token, by its id in the encoder.
    """

    memory: Tensor

    def __init__(self, encoder: Encoder, model: PreTrainedModel, ids: dict[int, int]) -> None:
        super().__init__()
        self.labelled = LabelledGraph(encoder, model)
        template = encoder.template
        self.first, self.last = len(template.first_ids), len(template.suffix_ids)
        memory = torch.tensor([ids[i] for i in template.memory_ids], dtype=torch.long)
        self.register_buffer("memory", memory, persistent=False)
        self.has_memory = bool(template.memory_ids)
        self.keep = encoder.get_embedding_dimension()
        self.normalize = encoder.normalize
        self.eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return final vectors, float32 `(batch, dimensions)`; a row that is all padding gets the zero vector.

        Args:
            input_ids: `(batch, tokens)` int64, as the exported tokenizer gives them.
            attention_mask: `(batch, tokens)` int64: 1 where a position is real; padding is on the right, or on the
                left.
        """
        ids, real = _padded_right(input_ids, (attention_mask != 0).long())
        vectors = self.labelled(ids, self._segments(ids, real))[:, : self.keep]
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors

    def _segments(self, input_ids: Tensor, real: Tensor) -> Tensor:
        """Return labels: the template's tokens `PROMPT`, memory tokens `MEMORY`, others `TEXT`."""
        rank = real.cumsum(-1)
        inside = (rank > self.first) & (rank <= rank[:, -1:] - self.last)
        labels = torch.where(inside, int(Segment.TEXT), int(Segment.PROMPT))
        if self.has_memory:
            is_memory = torch.eq(input_ids[..., None], self.memory).any(-1)
            labels = torch.where(is_memory, int(Segment.MEMORY), labels)
        return labels * real


def _padded_right(input_ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows with the padding on their left moved to their end; those without any are not changed."""
    width = input_ids.shape[1]
    padding = (real.cumsum(-1) == 0).long().sum(-1, keepdim=True)
    columns = torch.arange(width, device=real.device)[None] + padding
    columns = torch.where(columns < width, columns, columns - width)
    return input_ids.gather(1, columns), real.gather(1, columns)


def graph_refusal(encoder: Encoder) -> str | None:
    """Return why a graph of token ids cannot reproduce an encoder in its fixed form; None: it can.

    Attention, head and all poolings are part of the graph; texts whose words it cannot tell from the template's are
    refused by `check_text`, for all runtimes.
    """
    if encoder.pooling.over == "echo":
        return (
            "it pools over the repeated text, which token ids do not show; train with pooling over all or over memory "
            "tokens"
        )
    return None
