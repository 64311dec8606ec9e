import copy
import math

import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors
from torch.nn.functional import log_softmax
from torch.nn.utils.rnn import pad_sequence

from embrew.encoder import Encoder
from embrew.methods import Compression
from embrew.methods.base import text_ids
from embrew.settings.base import Base
from embrew.settings.encoder import Pooling
from embrew.text.tokens import Row, Segment, Tokens
from tests.conftest import DIFFERENT, FAMILIES, by_default, stir

SMALL = {"min_context_tokens": 4, "min_target_tokens": 3}
TEXTS = [
    "The quick brown fox jumps over the lazy dog near the river, twice a day.",
    "Embeddings turn a text into a vector.",
    "She sells sea shells by the sea shore, and he buys them in the morning; so it goes, year after year.",
]


def batch_of(objective, encoder, texts=TEXTS, seed=0):
    return objective.collate([{"text": text} for text in texts], encoder, seed=seed)


def split_alike(objective, encoder, text, other_text):
    """Two texts of the same length, split at the same site; the first seed that does so decides."""
    for seed in range(1000):
        batches = batch_of(objective, encoder, [text], seed), batch_of(objective, encoder, [other_text], seed)
        if batches[0]["context"].input_ids.shape == batches[1]["context"].input_ids.shape:
            return batches
    raise AssertionError("no seed splits the texts at the same site")


def with_lora(encoder, *, train_embeddings=False, **lora):
    """A LoRA whose B matrices, zero at first, hold something; returns a copy of the LM as it was before."""
    original = copy.deepcopy(encoder.backbone.model)
    encoder.backbone.add_lora({"r": 4, "lora_alpha": 8, **lora}, train_embeddings=train_embeddings)
    stir(encoder.backbone)
    return original.eval()


def gradients(encoder):
    return {name: p.grad for name, p in encoder.backbone.named_parameters() if p.grad is not None}


def pieces(batch):
    """Per row: ids of context (with BOS), ids of target."""
    context, student = batch["context"], batch["student"]
    for b in range(len(student)):
        inside = (context.segment_ids[b] != Segment.PAD) & (context.segment_ids[b] != Segment.MEMORY)
        yield context.input_ids[b, inside], student.input_ids[b, student.segment_ids[b] == Segment.TARGET]


def memory_alone(encoder, batch, b):
    """The memory states of row b, encoded without the others and without padding: `(1, k, hidden)`."""
    real = batch["context"].segment_ids[b] != Segment.PAD
    return encoder.memory_states(
        Tokens(batch["context"].input_ids[b : b + 1, real], batch["context"].segment_ids[b : b + 1, real])
    )


# ---- the frozen decoder ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", by_default(DIFFERENT, FAMILIES))
@pytest.mark.parametrize("include_last", [True, False])
def test_the_divergence_is_zero_for_a_memory_that_is_the_context_itself(make_encoder, family, include_last):
    encoder = make_encoder(family, lora={})
    ids = text_ids(TEXTS, encoder)
    width, sizes = 7, (5, 9, 3)
    bos = Row.labelled(encoder.template.bos_ids, Segment.PROMPT)
    targets = [Row.labelled(row[width : width + size], Segment.TARGET) for row, size in zip(ids, sizes, strict=True)]
    batch = {
        "student": Tokens.pad([bos + Row.labelled([0] * width, Segment.SOFT) + target for target in targets]),
        "teacher": Tokens.pad(
            [bos + Row.labelled(row[:width], Segment.TEXT) + target for row, target in zip(ids, targets, strict=True)]
        ),
    }
    with encoder.backbone.frozen_lm() as lm, torch.no_grad():
        context = lm.model.get_input_embeddings()(torch.tensor([row[:width] for row in ids]))
        objective = Compression(include_last=include_last)
        assert abs(sum(objective.decoder_losses(lm, context, batch)).item()) <= 1e-6
        assert sum(objective.decoder_losses(lm, context.roll(1, 0), batch)).item() > 0.01


@pytest.mark.parametrize("divergence", ["nll", "reconstruction"])
@pytest.mark.parametrize("family", by_default(DIFFERENT, FAMILIES))
def test_student_rows_predict_the_target(make_encoder, family, divergence):
    encoder = make_encoder(family)
    original = with_lora(encoder)
    objective = Compression(divergence=divergence, **SMALL)
    batch = batch_of(objective, encoder)
    student, embed = batch["student"], original.get_input_embeddings()
    memory = encoder.memory_states(batch["context"]).detach()
    rows, labels = [], []
    for b, (_, target) in enumerate(pieces(batch)):
        rows.append(torch.cat([embed(torch.tensor([1])), memory[b], embed(target)]))
        labels.append(torch.cat([torch.full((1 + memory.shape[1],), -100), target]))
    with torch.no_grad():
        expected = original(
            inputs_embeds=pad_sequence(rows, batch_first=True),
            attention_mask=student.attention_mask,
            labels=pad_sequence(labels, batch_first=True, padding_value=-100),
        ).loss
        loss = objective(encoder, batch)["loss"]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


CASES = {
    "kl": {},
    "kl without the last row": {"include_last": False},
    "kl without BOS": {"decoder_bos": False},
    "kl and nll": {"nll_weight": 0.3},
    "nll": {"divergence": "nll"},
    "nll without BOS": {"divergence": "nll", "decoder_bos": False},
    "reconstruction": {"divergence": "reconstruction"},
}


def without_bos(encoder):
    """The same encoder with a tokenizer that puts nothing before a text, as that of Qwen2 and of SmolLM2."""
    tokenizer = copy.deepcopy(encoder.tokenizer)
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    settings = {"template": encoder.template.pattern, "pooling": Pooling("mean", "memory")}
    bare = Encoder(encoder.backbone, tokenizer, Base("folder", "tiny"), attention="bidirectional", **settings)
    assert bare.template.bos_ids == []
    return bare.eval()


@pytest.mark.parametrize(
    ("case", "adds_bos"),
    by_default(
        [("kl and nll", True), ("kl without BOS", True), ("nll without BOS", True), ("reconstruction", False)],
        [*((case, True) for case in CASES), ("reconstruction", False), ("kl", False)],
    ),
)
def test_every_layout_is_a_loop_over_single_tokens(make_encoder, case, adds_bos):
    """Token by token, text by text, without padding, on a copy of the original LM, in float64 sums.

    Where the tokenizer adds no BOS, the decoder begins with EOS, and the encoder and the teacher with the text.
    """
    encoder = make_encoder() if adds_bos else without_bos(make_encoder())
    first = 1 if adds_bos else encoder.tokenizer.eos_token_id
    original = with_lora(encoder)
    objective = Compression(**SMALL, **CASES[case])
    batch = batch_of(objective, encoder, seed=5)
    embed = original.get_input_embeddings()
    bos = embed(torch.tensor([[first]])) if objective.decoder_bos else torch.zeros(1, 0, 32)

    def student(memory, before):
        inputs = torch.cat([bos, memory, embed(before)[None]], dim=1)
        return log_softmax(original(inputs_embeds=inputs).logits[0, -1].double(), -1)

    def teacher(context, before):
        return log_softmax(original(torch.cat([context, before])[None]).logits[0, -1].double(), -1)

    divergences, likelihoods, tokens = [], 0.0, 0
    with torch.no_grad():
        for b, (context, target) in enumerate(pieces(batch)):
            memory = memory_alone(encoder, batch, b)
            rows = []
            for r in range(len(target) + 1):
                log_q = student(memory, target[:r])
                if r < len(target):
                    likelihoods -= float(log_q[target[r]])
                    tokens += 1
                if r < len(target) or objective.include_last:
                    log_p = teacher(context, target[:r])
                    rows.append(float((log_p.exp() * (log_p - log_q)).sum()))
            assert len(rows) == len(target) + objective.include_last
            divergences.append(sum(rows) / len(rows))
        loss = objective(encoder, batch)["loss"].item()
    kl, nll = sum(divergences) / len(divergences), likelihoods / tokens
    expected = nll if objective.divergence != "kl" else kl + objective.nll_weight * nll
    assert loss == pytest.approx(expected, rel=1e-5)


# ---- who learns, and who stays --------------------------------------------------------------------------------


def lora_names():
    modules = [f"self_attn.{m}_proj" for m in "qkvo"] + [f"mlp.{m}_proj" for m in ("gate", "up", "down")]
    return {
        f"model.base_model.model.model.layers.{layer}.{module}.lora_{matrix}.default.weight"
        for layer in range(2)
        for module in modules
        for matrix in "AB"
    }


@pytest.mark.parametrize("family", ["llama", "llama-tied"])
@pytest.mark.parametrize("train_embeddings", [False, True])
def test_only_adapter_and_memory_learn(make_encoder, family, train_embeddings):
    encoder = make_encoder(family)
    original = with_lora(encoder, train_embeddings=train_embeddings)
    objective = Compression(**SMALL)
    objective.setup(encoder)
    ids = torch.tensor([[1, 20, 30, 40, 50, 60]])
    embeddings = {"model.base_model.model.model.embed_tokens.modules_to_save.default.weight"}
    optimizer = torch.optim.AdamW((p for p in encoder.parameters() if p.requires_grad), lr=0.05)
    before = copy.deepcopy(dict(encoder.backbone.named_parameters()))
    for step in range(2):
        optimizer.zero_grad()
        objective(encoder, batch_of(objective, encoder, seed=step))["loss"].backward()
        grads = gradients(encoder)
        assert set(grads) == {"memory"} | lora_names() | (embeddings if train_embeddings else set())
        assert all(grad.abs().max() > 0 for grad in grads.values())
        with encoder.backbone.frozen_lm() as lm:
            assert lm.head.weight.grad is None
            assert lm.model.get_output_embeddings().weight.grad is None
        optimizer.step()
    changed = {n for n, p in encoder.backbone.named_parameters() if not torch.equal(p, before[n])}
    assert changed == set(grads)
    with encoder.backbone.frozen_lm() as lm, torch.no_grad():
        assert torch.equal(lm.model(ids).logits, original(ids).logits)  # to the bit
        assert torch.equal(lm.head.weight, original.get_output_embeddings().weight)


def two_copies(encoder, original, objective, batch):
    """The method written down plainly: two models, all logits, one ordinary backward pass."""
    memory = encoder.memory_states(batch["context"])
    student, embed = batch["student"], original.get_input_embeddings()
    rows = [
        torch.cat([embed(torch.tensor([1])), memory[b], embed(target)]) for b, (_, target) in enumerate(pieces(batch))
    ]
    logits = original(inputs_embeds=pad_sequence(rows, batch_first=True), attention_mask=student.attention_mask).logits
    k, losses, likelihoods = memory.shape[1], [], []
    for b, (context, target) in enumerate(pieces(batch)):
        log_q = log_softmax(logits[b, k : k + len(target) + 1], -1)
        likelihoods.append(-log_q[torch.arange(len(target)), target])
        if objective.divergence == "kl":
            with torch.no_grad():
                teacher_logits = original(torch.cat([context, target])[None]).logits[0]
            log_p = log_softmax(teacher_logits[len(context) - 1 :], -1)
            assert len(log_p) == len(log_q) == len(target) + 1
            losses.append((log_p.exp() * (log_p - log_q)).sum(-1).mean())
    nll = torch.cat(likelihoods).mean()
    return torch.stack(losses).mean() + objective.nll_weight * nll if losses else nll


@pytest.mark.parametrize("case", ["kl and nll", "reconstruction"])
def test_one_copy_learns_as_two_do(make_encoder, case):
    encoder = make_encoder()
    original = with_lora(encoder)
    objective = Compression(**SMALL, **CASES[case])
    objective.setup(encoder)
    encoder.train()
    batch = batch_of(objective, encoder)
    expected = two_copies(encoder, original, objective, batch)
    expected.backward()
    wanted = {name: grad.clone() for name, grad in gradients(encoder).items()}
    encoder.zero_grad(set_to_none=True)
    loss = objective(encoder, batch)["loss"]
    (2.0 * loss).backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    grads = gradients(encoder)
    assert set(grads) == set(wanted)
    for name, grad in grads.items():
        torch.testing.assert_close(grad / 2.0, wanted[name], rtol=1e-4, atol=1e-6)


def test_losses_that_share_a_graph_are_refused(make_encoder):
    encoder = make_encoder()
    with_lora(encoder)
    objective = Compression(**SMALL)
    objective.setup(encoder)

    def losses(lm, memory):
        squares = memory.square().sum()
        return [squares * 1.0, squares * 2.0]

    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        objective.total_loss(encoder, batch_of(objective, encoder)["context"], losses)


def test_the_decoder_has_no_dropout_in_training(make_encoder):
    """Whatever the encoder's dropout is, the frozen LM is the LM in evaluation mode, and gets its dropout back."""
    encoder = make_encoder()
    original = with_lora(encoder, lora_dropout=0.3)
    batch = batch_of(Compression(**SMALL), encoder)
    encoder.backbone.set_attention_dropout(0.4)
    encoder.train()
    with encoder.backbone.frozen_lm() as lm, torch.no_grad():
        teacher = batch["teacher"]
        expected = original.base_model(teacher.input_ids, attention_mask=teacher.attention_mask).last_hidden_state
        real = teacher.attention_mask.bool()  # behind the text, where nothing is read, there is no mask
        assert torch.equal(lm.hidden_states(teacher)[real], expected[real])
    layers = encoder.backbone.inner.layers
    assert [layer.self_attn.attention_dropout for layer in layers] == [0.4, 0.4]
    Compression(**SMALL).setup(encoder)
    assert [layer.self_attn.attention_dropout for layer in layers] == [0.0, 0.0]


# ---- what reads what ------------------------------------------------------------------------------------------


def test_the_memory_does_not_see_the_continuation(make_encoder):
    encoder = make_encoder(lora={})
    objective = Compression(**SMALL)
    one, other = split_alike(objective, encoder, TEXTS[0] + "!", TEXTS[0] + "?")
    assert not torch.equal(one["student"].input_ids, other["student"].input_ids)
    assert torch.equal(encoder.memory_states(one["context"]), encoder.memory_states(other["context"]))


def test_the_student_sees_the_context_through_the_memory_only(make_encoder):
    encoder = make_encoder(lora={})
    objective = Compression(**SMALL)
    one, other = split_alike(objective, encoder, "X" + TEXTS[0], "Y" + TEXTS[0])
    memory = encoder.memory_states(one["context"]).detach()
    assert not torch.equal(one["context"].input_ids, other["context"].input_ids)
    assert (memory - encoder.memory_states(other["context"])).abs().max() > 1e-3  # the encoder does tell them apart
    with encoder.backbone.frozen_lm() as lm:
        states = [lm.hidden_states(batch["student"].with_soft(memory)) for batch in (one, other)]
        losses = [sum(objective.decoder_losses(lm, memory, batch)).item() for batch in (one, other)]
    assert torch.equal(*states)
    assert losses[0] != losses[1]  # the teacher reads the context itself


# ---- splitting ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide(tokenizer):
    """Encoders with 12 memory tokens, by template; made once, since hypothesis calls often."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from embrew.encoder import Encoder
    from embrew.model.backbone import Backbone
    from embrew.settings.base import Base

    config = LlamaConfig(vocab_size=300, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    backbone = Backbone(LlamaForCausalLM(config))
    backbone.add_memory(12)
    return {
        template: Encoder(backbone, tokenizer, Base("folder", "tiny"), template=template)
        for template in ("{instruction}{text}{memory}", 'Text: "{text}" means:{memory}{eos}')
    }


@given(
    template=st.sampled_from(["{instruction}{text}{memory}", 'Text: "{text}" means:{memory}{eos}']),
    words=st.lists(st.integers(0, 120), min_size=1, max_size=3),
    limit=st.integers(4, 90),
    least=st.tuples(st.integers(0, 15), st.integers(1, 15)),
    divergence=st.sampled_from(["kl", "nll", "reconstruction"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_any_split_keeps_its_promises(wide, template, words, limit, least, divergence, seed):
    encoder = wide[template]
    encoder = encoder.with_settings(max_length={"query": 8, "document": limit})
    objective = Compression(divergence=divergence, min_context_tokens=least[0], min_target_tokens=least[1])
    frame = len(encoder.template.rows([[]])[0].ids)  # BOS, words of the template, memory, EOS
    first = max(least[0] - 1, 1)
    texts = Dataset.from_dict({"text": ["a" * n for n in words]})
    lengths = [len(ids) for ids in text_ids(list(texts["text"]), encoder)]
    wanted = first if divergence == "reconstruction" else first + least[1]
    if max(lengths) < wanted:
        with pytest.raises(ValueError, match=f"all {len(words)} texts are shorter than {wanted} tokens"):
            objective.prepare(texts, encoder)
        return
    rows = objective.prepare(texts, encoder)
    assert len(rows) == sum(length >= wanted for length in lengths)
    if limit - frame < first or (divergence != "reconstruction" and limit - 1 < wanted):
        with pytest.raises(ValueError, match="raise max_length"):
            objective.setup(encoder)
        return
    batch = objective.collate(list(rows), encoder, seed=seed)
    assert batch["context"].attention_mask.sum(-1).max() <= limit
    assert bool((batch["context"].where(Segment.MEMORY).sum(-1) == 12).all())
    assert bool((batch["student"].where(Segment.SOFT).sum(-1) == 12).all())
    labels = batch["student"].input_ids[batch["student"].where(Segment.TARGET)]
    assert int(labels.max()) < encoder.backbone.vocab_size
    for b, ids in enumerate(text_ids(list(rows["text"]), encoder)):
        context = batch["context"].input_ids[b, batch["context"].where(Segment.TEXT)[b]].tolist()
        target = batch["student"].input_ids[b, batch["student"].where(Segment.TARGET)[b]].tolist()
        assert len(context) >= first
        if divergence == "reconstruction":
            assert context == target == ids[: limit - frame]
        else:
            assert context + target == ids[: limit - 1]
            assert len(target) >= least[1]
        if divergence == "kl":
            real = batch["teacher"].segment_ids[b] != Segment.PAD
            assert batch["teacher"].input_ids[b, real].tolist() == [1, *context, *target]


def test_the_split_is_uniform_over_seeds(make_encoder):
    encoder = make_encoder()
    objective = Compression(**SMALL)
    (ids,) = text_ids(TEXTS[:1], encoder)
    seen = [len(target) for seed in range(400) for _, target in pieces(batch_of(objective, encoder, TEXTS[:1], seed))]
    allowed = range(3, len(ids) - 3 + 1)  # 3 text tokens and BOS stay in the context
    assert set(seen) == set(allowed)
    expected = 400 / len(allowed)
    chi_square = sum((seen.count(n) - expected) ** 2 / expected for n in allowed)
    assert chi_square < len(allowed) + 5 * math.sqrt(2 * len(allowed))


# ---- refusals -------------------------------------------------------------------------------------------------


def test_a_merged_adapter_is_refused(make_encoder):
    encoder = make_encoder(lora={})
    encoder.merge_adapter()
    with pytest.raises(ValueError, match="an earlier stage merged its adapter"):
        Compression().setup(encoder)
    encoder.backbone.add_lora({"r": 2})
    with pytest.raises(ValueError, match="continue it with adapter: continue"):
        Compression().setup(encoder)


def test_a_text_is_read_once(make_encoder):
    encoder = make_encoder("llama", template="{text} Again: {echo}{memory}")
    with pytest.raises(ValueError, match=r"remove \{echo\}"):
        Compression().setup(encoder)
    Compression(rows="pairs").setup(encoder)


# ---- groups of similar length --------------------------------------------------------------------------------------
