"""The last token's attention, against the library's own attention weights and a loop."""

import copy

import numpy as np
import pytest
import torch

from embrew.analysis.sink import PARTS, attention_weights, parts_of, sink_of
from embrew.model.contexts import Context, insert
from embrew.settings.encoder import Demonstration, Demonstrations
from embrew.text.tokens import Row, Segment, Tokens
from tests.conftest import DIFFERENT, ENCODER_FAMILIES, FAMILIES, SENTENCES, by_default

TEMPLATE = "{instruction}{text} means:{eos}"


@pytest.mark.parametrize("mode", ["causal", "bidirectional"])
@pytest.mark.parametrize("family", by_default(DIFFERENT, FAMILIES))
def test_the_shares_are_those_of_eager_attention(family, mode, make_encoder):
    encoder = make_encoder(family, memory_tokens=0, attention=mode, template=TEMPLATE, prompts={"query": "Find it: "})
    assert encoder.backbone.inner.config._attn_implementation == "sdpa"
    reference = copy.deepcopy(encoder.backbone.causal_lm)
    reference.set_attn_implementation("eager")
    wanted = np.zeros((2, len(PARTS)))
    with torch.no_grad():
        for text in SENTENCES:
            (row,) = encoder.template.rows([text], instruction="Find it: ")
            ids = torch.tensor([row.ids])
            mask = torch.ones_like(ids)
            called = {} if mode == "causal" else {"is_causal": False}
            layers = reference(input_ids=ids, attention_mask=mask, output_attentions=True, **called).attentions
            count = row.segments.count(Segment.TEXT)
            begin = row.segments.index(Segment.TEXT)
            parts = ["first"] + ["prompt"] * (begin - 1) + ["text"] * count
            parts += ["after"] * (len(row.ids) - len(parts) - 1) + ["itself"]
            for layer, weights in enumerate(layers):
                for part, weight in zip(parts, weights[0, :, -1].mean(0).tolist(), strict=True):
                    wanted[layer, PARTS.index(part)] += weight / len(SENTENCES)
    for options in ({}, {"batch_tokens": 60}):
        sink = sink_of(encoder, SENTENCES, prompt_name="query", **options)
        np.testing.assert_allclose(sink.shares, wanted, atol=1e-6)
        np.testing.assert_allclose(sink.shares.sum(1), 1, atol=1e-6)
    assert encoder.backbone.inner.config._attn_implementation == "sdpa"  # and nothing was changed
    assert sink.first_token_share(1.0) == sink.shares[-1, 0]
    assert sink.first_token_share(0.5) == sink.shares[0, 0]


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "distilbert"])
def test_encoders_too(family, encoder_folder):
    from embrew.encoder import Encoder

    assert family in ENCODER_FAMILIES
    encoder = Encoder.from_pretrained(encoder_folder(family), device="cpu", max_length=128)
    sink = sink_of(encoder, SENTENCES)
    np.testing.assert_allclose(sink.shares.sum(1), 1, atol=1e-6)
    assert sink.shares.shape == (3, len(PARTS))


def test_a_layer_that_slides_cannot_look_at_the_first_token(make_encoder):
    encoder = make_encoder("gemma3", memory_tokens=0, attention="causal")  # a window of 8, then all
    sink = sink_of(encoder, [text for text in SENTENCES if len(encoder.template.rows([text])[0].ids) > 9])
    assert sink.shares[0, 0] == 0 < sink.shares[1, 0]


def test_parts_by_hand():
    row = (
        Row.labelled([1, 5, 6], Segment.PROMPT) + Row.labelled([7, 7], Segment.SOFT) + Row.labelled([5], Segment.PROMPT)
    )
    row = (
        row
        + Row.labelled([8, 9], Segment.TEXT)
        + Row.labelled([3], Segment.PROMPT)
        + Row.labelled([300], Segment.MEMORY)
    )
    tokens = Tokens.pad([row, Row.labelled([1], Segment.PROMPT) + Row.labelled([8, 9], Segment.TEXT)])
    names = [
        "first",
        "prompt",
        "prompt",
        "demonstrations",
        "demonstrations",
        "prompt",
        "text",
        "text",
        "after",
        "itself",
    ]
    parts = parts_of(tokens.select([0]), 2, begin=3)
    assert parts.tolist() == [[PARTS.index(name) for name in names]]
    names[3:5] = 2 * ["prompt"]
    assert parts_of(tokens).tolist() == [
        [PARTS.index(name) for name in names],
        [PARTS.index(name) for name in ("first", "text", "itself")] + [-1] * 7,
    ]


@pytest.mark.parametrize("compress", ["pair", "none"])
def test_demonstrations_are_a_part_of_their_own(compress, make_encoder):
    encoder = make_encoder(
        memory_tokens=0, attention="causal", template=TEMPLATE, demonstrations=Demonstrations(compress=compress)
    )
    pairs = (Demonstration("fox", SENTENCES[0]), Demonstration("sea", SENTENCES[3]))
    context = encoder.add_context("task", Context("Find it: ", pairs))
    reference = copy.deepcopy(encoder.backbone.causal_lm)
    reference.set_attn_implementation("eager")
    (row,) = insert(encoder.template.rows(SENTENCES[:1], instruction="Find it: "), context.row, encoder.template)
    with torch.no_grad():
        embedded = encoder.backbone.embed(Tokens.pad([row]).with_soft(context.vectors))
        layers = reference(inputs_embeds=embedded, output_attentions=True).attentions
    sink = sink_of(encoder, SENTENCES[:1], prompt_name="task")
    count = len(context.row.ids)
    assert sink.tokens == len(row.ids)
    for layer, weights in enumerate(layers):
        shares = weights[0, :, -1].mean(0)
        assert sink.share_of("first")[layer] == pytest.approx(float(shares[0]), abs=1e-6)
        assert sink.share_of("demonstrations")[layer] == pytest.approx(float(shares[1 : 1 + count].sum()), abs=1e-6)


def test_no_two_layers_are_held_at_once(make_encoder):
    """Every layer's weights are gone when the next layer's are there."""
    import weakref

    encoder = make_encoder(memory_tokens=0, attention="causal")
    alive = []
    tokens = encoder.tokenize(SENTENCES)

    def read(number, weights):
        assert all(weak() is None for weak in alive), number
        assert weights.shape == (len(SENTENCES), 4, tokens.input_ids.shape[1], tokens.input_ids.shape[1])
        alive.append(weakref.ref(weights))

    with torch.inference_mode(), attention_weights(encoder.backbone.inner, read):
        encoder.hidden_states(tokens)
    assert len(alive) == 2


def test_mistakes(make_encoder):
    encoder = make_encoder(memory_tokens=0, attention="causal")
    with pytest.raises(ValueError, match="no texts"):
        sink_of(encoder, [])
    with pytest.raises(ValueError, match="prompt_name='faq'; this encoder has document, query"):
        sink_of(encoder, SENTENCES, prompt_name="faq")
    two = make_encoder(memory_tokens=0, attention="causal", template=["{text} is", "{text} was"])
    with pytest.raises(ValueError, match="2 templates; give one with a single template"):
        sink_of(two, SENTENCES)
