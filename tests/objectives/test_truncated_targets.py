"""Targets beyond their limit: no end is asked for where there is more, and a continuation follows what was read."""

import pytest

from embrew.methods.base import text_ids
from embrew.recipe import build
from embrew.text.tokens import Segment
from tests.conftest import SENTENCES

LIMIT = 24
LONG, SHORT = " ".join(SENTENCES), "in the river"
FRAME = {"attention": "causal", "template": "{text}\n{instruction}\n{memory}", "lora": {"lora_dropout": 0.0}}
OBJECTIVES = [
    ("sft", {}),
    ("bottleneck", {}),
    ("bottleneck", {"target": "text"}),
    ("bottleneck", {"target": "rest", "min_tokens": 3}),
    ("joint", {"base": {"type": "contrastive", "positives": "column"}}),
    ("compression", {"rows": "pairs", "divergence": "nll", "end": True, "decoder_bos": False}),
    ("alignment", {"variant": "kl"}),
    ("language_model", {}),
]


def ready(make_encoder, kind, settings, max_length):
    encoder = make_encoder(**FRAME, max_length=max_length)
    objective = build.objective({"type": kind, **settings})
    objective.setup(encoder)
    return encoder, objective


def written(batch, name):
    """The target of every row, in ids."""
    tokens = batch[name]
    return [ids[there].tolist() for ids, there in zip(tokens.input_ids, tokens.where(Segment.TARGET), strict=True)]


@pytest.mark.parametrize(("kind", "settings"), OBJECTIVES)
def test_the_end_is_a_label_only_where_it_is_the_end(kind, settings, make_encoder):
    """Positives and negatives beyond the limit, just within it, and far within it."""
    encoder, objective = ready(make_encoder, kind, settings, {"query": 64, "document": LIMIT})
    eos = encoder.tokenizer.eos_token_id
    (ids,) = text_ids([LONG], encoder)
    fits = encoder.tokenizer.decode(ids[: LIMIT - 3])
    rows = []
    for text in (LONG, SHORT, fits):
        pairs = {"query": SHORT, "positive": text, "negatives": [LONG, SHORT]}
        rows.append({"text": f"{SHORT} {text}"} if objective.rows_kind == "text" else pairs)
    batch = objective.collate(rows, encoder)
    name = {"compression": "student", "alignment": "decoded"}.get(kind, "text")
    targets = written(batch, name)
    ended = {encoder.tokenizer.decode(target[:-1]) for target in targets if target[-1] == eos}
    cut = [target for target in targets if target[-1] != eos]
    assert cut and ended, "some are truncated and some are not"
    assert not any(eos in target for target in cut)
    whole = {LONG, SHORT, fits, *(row.get("text", "") for row in rows)}
    assert all(any(text.endswith(said) for text in whole) for said in ended), "an end where there is more"
    assert all(len(target) <= LIMIT for target in targets)


@pytest.mark.parametrize("ratio", [None, 6])
@pytest.mark.parametrize("target", ["rest", "text"])
def test_what_is_written_follows_what_was_read(target, ratio, make_encoder):
    """Token by token, for texts that are longer than what can be read; also where memory goes by length."""
    encoder = make_encoder(**{**FRAME, "template": "say: {text}\n{memory}"}, max_length=32, memory_ratio=ratio)
    objective = build.objective({"type": "bottleneck", "target": target, "min_tokens": 3})
    objective.setup(encoder)
    texts = [LONG[i : i + 40 + 15 * i] for i in range(20)]
    wrong = 0
    for seed in range(4):
        tokens = objective.collate([{"text": text} for text in texts], encoder, seed=seed)["text"]
        for i, ids in enumerate(text_ids(texts, encoder)):
            read, after = (
                tokens.input_ids[i][tokens.where(segment)[i]].tolist() for segment in (Segment.TEXT, Segment.TARGET)
            )
            assert read == ids[: len(read)] and len(read) >= 3
            followed = ids[len(read) :] if target == "rest" else read
            ended = target == "rest" or len(read) == len(ids)
            wrong += after != [*followed, *([2] if ended else [])][:32] and after != followed[:32]
    assert wrong == 0, f"{wrong} of {4 * len(texts)} targets do not follow what was read"
