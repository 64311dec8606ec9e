"""Convert an encoder in memory: the same vectors, computed by OpenVINO."""

from __future__ import annotations

import numpy as np
import torch

from embrew.encoder import Encoder
from embrew.model.contexts import PreparedContext
from embrew.runtimes.graph import LabelledGraph, merged_model, write_rows
from embrew.runtimes.openvino_encoder import OpenVINOEncoder, Origin, Shape, in_vocabulary
from embrew.runtimes.openvino_model import Program, convert
from embrew.runtimes.reference import check_close
from embrew.storage.saving import REFERENCE_TEXTS, tolerance
from embrew.text.tokens import Segment
from embrew.text_encoder import TextEncoder, model_hash, tokenizer_sha256


def convert_encoder(encoder: Encoder, *, bfloat16: bool, origin: TextEncoder | None = None) -> OpenVINOEncoder:
    """Return an encoder that OpenVINO computes, after a comparison of both on a few texts.

    Args:
        encoder: encoder to convert; it is not changed.
        bfloat16: compute in bfloat16.
        origin: model that `encoder` was read from, if it is of another class; it is the one that is compared.

    Raises:
        ValueError: the vectors are others.
    """
    backbone = encoder.backbone
    learned = [*backbone.memory_ids, *backbone.soft_prompt_ids]
    next_id = backbone.vocab_size + len(learned)
    contexts: dict[str, PreparedContext] = {}
    rows: dict[int, torch.Tensor] = {}
    for name, context in encoder.contexts.items():
        pairs = zip(context.row.ids, context.row.segments, strict=True)
        contexts[name] = in_vocabulary(context, [i + next_id if segment == Segment.SOFT else i for i, segment in pairs])
        rows.update(enumerate(context.vectors, start=next_id))
        next_id += len(context.vectors)
    model = merged_model(encoder, {i: i for i in learned}, next_id)
    write_rows(model, rows)
    program = Program(convert(LabelledGraph(encoder, model), "segment_ids"), bfloat16=bfloat16)
    original = origin or encoder
    converted = OpenVINOEncoder(
        program,
        shape_of(encoder),
        encoder.tokenizer,
        encoder.settings,
        Origin(encoder.describe(), model_hash(original), tokenizer_sha256(original)),
        contexts=contexts,
        labelled=True,
    )
    converted.truncate_dim = encoder.truncate_dim
    compare(converted, original)
    return converted


def shape_of(encoder: Encoder) -> Shape:
    """Return what the text side of an encoder reads of its model."""
    backbone = encoder.backbone
    return Shape(
        vocab_size=backbone.vocab_size,
        hidden_size=backbone.hidden_size,
        num_layers=backbone.num_layers,
        max_positions=backbone.max_positions,
        is_encoder=backbone.is_encoder,
        memory_ids=list(backbone.memory_ids),
        soft_prompt_ids=list(backbone.soft_prompt_ids),
    )


def compare(converted: OpenVINOEncoder, encoder: TextEncoder) -> None:
    """Encode a few texts with both, as queries and as documents.

    Raises:
        ValueError: the largest difference, or the smallest cosine in bfloat16, is not allowed.
    """
    texts = [*REFERENCE_TEXTS, " ".join(REFERENCE_TEXTS)]
    for method in ("encode_query", "encode_document"):
        vectors, expected = (
            torch.from_numpy(np.array(getattr(model, method)(texts, show_progress_bar=False))).float()
            for model in (converted, encoder)
        )
        allowed = None if converted.in_bfloat16 else tolerance(torch.float32, converted.backbone.num_layers)
        check_close(vectors, expected, allowed, what=f"OpenVINO ({method})")
