"""A beginning that all rows share is computed once, and nothing else changes."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
import torch
from peft.tuners.tuners_utils import BaseTunerLayer

from embrew.modeling.encoder import Encoder
from embrew.modeling.model import prefix as module
from embrew.modeling.model.changes import tensors_fingerprint
from embrew.modeling.model.prefix import Prefix, shared_prefix
from embrew.modeling.settings.pooling import Pooling
from embrew.modeling.text.tokens import Row, Segment, Tokens
from tests.conftest import DIFFERENT, FAMILIES, SENTENCES, by_default

WORDS = "Read this text with care, and say in a single word what it means. "
TEXTS = [*SENTENCES, "a", "Read this", "🦆", "", SENTENCES[0]]


def plain(encoder: Encoder, texts: list[str], monkeypatch: pytest.MonkeyPatch, **options: object) -> np.ndarray:
    with monkeypatch.context() as patch:
        patch.setattr(module, "WORTHWHILE", 10**9)
        return encoder.encode(texts, **options)


def counted(encoder: Encoder) -> list[int]:
    """Tokens that the first layer runs, from now on. Call it before the first text is embedded: it is a change too."""
    seen: list[int] = []
    layer = encoder.backbone.inner.layers[0]
    forward = layer.forward

    def counting(states: torch.Tensor, *args: object, **options: object) -> object:
        seen.append(states[..., 0].numel())
        return forward(states, *args, **options)

    layer.forward = counting
    return seen


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("family", by_default(DIFFERENT, FAMILIES))
def test_the_same_vectors_on_every_family(family, kernel, make_encoder, monkeypatch):
    encoder = make_encoder(
        family,
        template=WORDS + "{text} End.",
        memory_tokens=0,
        attention="causal",
        attn_implementation=kernel,
        pooling=Pooling("mean", "all"),
    )
    for options in ({"batch_size": 4}, {"batch_tokens": 64}, {"num_layers": 1}):
        wanted = plain(encoder, TEXTS, monkeypatch, **options)
        assert np.abs(encoder.encode(TEXTS, **options) - wanted).max() < 5e-6, options


@pytest.mark.parametrize("mode", ["last", "mean", "weighted_mean"])
def test_every_pooling_and_memory_tokens(mode, make_encoder: Callable[..., Encoder], monkeypatch):
    for settings in (
        {"memory_tokens": 3, "template": WORDS + "{text}{memory}", "pooling": Pooling(mode, "memory")},
        {"memory_tokens": 0, "template": WORDS + "{instruction}{text}", "pooling": Pooling(mode, "text")},
    ):
        encoder = make_encoder(lora={}, attention="causal", **settings)
        wanted = plain(encoder, TEXTS, monkeypatch)
        assert np.abs(encoder.encode(TEXTS) - wanted).max() < 5e-6


def test_it_is_computed_once_for_a_call(make_encoder):
    encoder = make_encoder(template=WORDS + "{text}", memory_tokens=0, attention="causal", pooling="last")
    rows = encoder.template.rows(TEXTS)
    shared = shared_prefix(rows)
    assert shared > 30
    seen = counted(encoder)
    encoder.encode(TEXTS, batch_size=3)
    rest = sum(len(row.ids) - shared for row in rows)
    assert seen[0] == shared and sum(seen[1:]) < 1.6 * rest  # padded a little, as any batch
    assert len(seen) >= 1 + len(TEXTS) // 3


def test_two_templates_take_turns(make_encoder, monkeypatch):
    encoder = make_encoder(
        template=[WORDS + "{text}", "Another beginning, no less long than the first one: {text}"],
        memory_tokens=0,
        attention="causal",
        pooling="last",
    )
    wanted = plain(encoder, TEXTS, monkeypatch)
    assert np.abs(encoder.encode(TEXTS, batch_size=3) - wanted).max() < 5e-6


def test_a_bidirectional_model_reads_it_anew_with_every_text(make_encoder):
    encoder = make_encoder(template=WORDS + "{text}", memory_tokens=0, attention="bidirectional", pooling="last")
    seen = counted(encoder)
    encoder.encode(TEXTS, batch_size=20)
    assert sum(seen) >= sum(len(row.ids) for row in encoder.template.rows(TEXTS))
    tokens = encoder.tokens(TEXTS)
    with pytest.raises(ValueError, match="under causal attention only, not bidirectional"):
        encoder.backbone.hidden_states(tokens, encoder.attention, shared=Prefix().at(tokens, 20))


def test_what_is_shared():
    def row(words: int, text: list[int]) -> Row:
        return Row.of(range(words), Segment.PROMPT) + Row.of(text, Segment.TEXT)

    assert shared_prefix([row(30, [1]), row(30, [2, 3])]) == 30
    assert shared_prefix([row(30, [40]), row(30, [40])]) == 30  # equal texts are no prompt
    assert shared_prefix([row(30, [1]), row(30, [])]) == 29  # a row keeps a token of its own
    assert shared_prefix([row(30, [1]), Row.of([*range(20), 99], Segment.PROMPT)]) == 20
    assert shared_prefix([row(10, [1]), row(10, [2])]) == 0
    assert shared_prefix([row(30, [1])]) == 30  # for the calls to come
    assert shared_prefix([]) == 0
    places = Row.of(range(30), Segment.SOFT) + Row.of([1], Segment.TEXT)
    assert shared_prefix([places, places]) == 30
    assert shared_prefix([places, row(30, [1])]) == 0  # the same numbers, but other things


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_library_gives_the_same_states_padded_on_either_side(family, side, make_encoder):
    """Against one pass of the model itself over whole rows, with a mask and positions of its own."""
    encoder = make_encoder(family, template=WORDS + "{text}", memory_tokens=0, attention="causal", pooling="last")
    rows = encoder.template.rows(SENTENCES)
    tokens, count = Tokens.pad(rows), shared_prefix(rows)
    assert count > 30  # far beyond the window of the families that have one
    width = tokens.input_ids.shape[1]
    ids, mask = torch.zeros(2, len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        at = slice(width - len(row.ids), None) if side == "left" else slice(len(row.ids))
        ids[i, at], mask[i, at] = torch.tensor(row.ids), 1
    with torch.no_grad():
        wanted = encoder.backbone.inner(
            input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0)
        ).last_hidden_state
        seen = counted(encoder)
        found = encoder.backbone.hidden_states(tokens, encoder.attention, shared=Prefix().at(tokens, count))
    assert sum(seen) == count + len(rows) * (width - count)
    for i, row in enumerate(rows):
        real = wanted[i, -len(row.ids) :] if side == "left" else wanted[i, : len(row.ids)]
        torch.testing.assert_close(found[i, : len(row.ids)], real, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "mistral"])
def test_vectors_in_the_beginning(family, make_encoder):
    """A table of vectors, whose rows the ids of their places count: as one pass over whole rows gives it."""
    encoder = make_encoder(family, template="{text}", memory_tokens=0, attention="causal", pooling="mean", lora={})
    generator = torch.Generator().manual_seed(5)
    tables = [torch.randn(8, 32, generator=generator) for _ in range(2)]
    begin = Row.of([1], Segment.PROMPT)
    for number in range(8):
        begin += Row.of([50, 51], Segment.PROMPT) + Row.of([7 - number], Segment.SOFT)
    rows = [
        begin + Row.of(encoder.tokenizer(text, add_special_tokens=False).input_ids, Segment.TEXT) for text in SENTENCES
    ]
    assert shared_prefix(rows) == len(begin.ids) == 25
    prefix, found = Prefix(), []
    with torch.no_grad():
        for table in (*tables, tables[0]):
            tokens = Tokens.pad(rows).with_soft(table)
            wanted = encoder(tokens)
            assert (encoder(tokens, shared=prefix.at(tokens, 25)) - wanted).abs().max() < 5e-6
            found.append(wanted)
    assert (found[0] - found[1]).abs().max() > 0.01
    assert len(prefix._kept) == 2
    with pytest.raises(ValueError, match="vectors that differ between rows cannot be shared"):
        prefix.at(Tokens.pad(rows).with_soft(torch.zeros(5, 8, 32)), 25)


def changes(encoder: Encoder, patch: pytest.MonkeyPatch) -> dict[str, Callable[[], object]]:
    """Everything that makes the same words mean something else to a model, or may."""
    backbone = encoder.backbone
    parameter = next(p for name, p in backbone.named_parameters() if "lora_B" in name)
    embedding = backbone.causal_lm.get_input_embeddings().weight
    layer = next(m for m in backbone.modules() if isinstance(m, BaseTunerLayer))
    inner = backbone.inner
    frozen = inner.layers[1].mlp.down_proj.base_layer.weight
    handles = []

    def step(optimizer: torch.optim.Optimizer) -> None:
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    def load(**options: bool) -> None:
        encoder.load_state_dict({k: 1.1 * v for k, v in encoder.state_dict().items()}, **options)

    def uncounted(tensor: torch.Tensor, values: torch.Tensor) -> None:
        """As exponential moving averages are put in, and as DeepSpeed writes what it has trained."""
        before = tensor._version
        tensor.data.copy_(values)
        assert tensor._version == before, "torch counts this write"

    def hook(undo: bool = False) -> None:
        handles.append(inner.layers[0].register_forward_hook(lambda module, args, states: states * 1.5))
        if undo:
            encoder.encode(TEXTS)
            handles.pop().remove()

    def every_module() -> None:
        handles.append(torch.nn.modules.module.register_module_forward_pre_hook(lambda module, args: None))

    def switch(times: int) -> None:
        for _ in range(times):
            encoder.train()
            encoder.eval()

    return {
        "an optimiser's step": lambda: step(torch.optim.SGD([parameter], lr=1.0)),
        "a fused optimiser's step": lambda: step(torch.optim.AdamW([parameter], lr=0.5, fused=True)),
        "a copy": lambda: parameter.detach().copy_(torch.randn_like(parameter)),
        "an assignment": lambda: setattr(parameter, "data", parameter.data * 3),
        "a write that torch does not count": lambda: uncounted(parameter, torch.randn_like(parameter)),
        "such a write into frozen weights": lambda: uncounted(frozen, frozen * 1.3),
        "such a write into one embedding": lambda: uncounted(embedding[52], embedding[52] + 1.0),
        "a swap": lambda: torch.utils.swap_tensors(frozen, torch.nn.Parameter(frozen * 1.3, requires_grad=False)),
        "loading": load,
        "loading by assignment": lambda: load(assign=True),
        "a scale": lambda: layer.scaling.update(default=7.0),
        "a norm's epsilon": lambda: setattr(inner.layers[0].input_layernorm, "variance_epsilon", 0.5),
        "a rope setting": lambda: setattr(inner.rotary_emb, "attention_scaling", 2.0),
        "a value of the configuration": lambda: patch.setattr(inner.config, "use_cache", not inner.config.use_cache),
        "another activation": lambda: setattr(inner.layers[0].mlp, "act_fn", torch.nn.Tanh()),
        "a hook": hook,
        "a hook that is gone": lambda: hook(undo=True),
        "a hook on every module": every_module,
        "training in between": lambda: switch(1),
        "training twice in between": lambda: switch(2),
        "merging": encoder.merge_adapter,
        "another precision": lambda: encoder.to(torch.bfloat16),
    }


CHANGES = (
    "an optimiser's step",
    "a fused optimiser's step",
    "a copy",
    "an assignment",
    "a write that torch does not count",
    "such a write into frozen weights",
    "such a write into one embedding",
    "a swap",
    "loading",
    "loading by assignment",
    "a scale",
    "a norm's epsilon",
    "a rope setting",
    "a value of the configuration",
    "another activation",
    "a hook",
    "a hook that is gone",
    "a hook on every module",
    "training in between",
    "training twice in between",
    "merging",
    "another precision",
)
UNFELT = (
    "merging",
    "a value of the configuration",
    "a hook that is gone",
    "a hook on every module",
    "training in between",
    "training twice in between",
)


@pytest.fixture
def no_hooks_left() -> Iterator[None]:
    yield
    torch.nn.modules.module._global_forward_pre_hooks.clear()


@pytest.mark.parametrize("what", CHANGES)
def test_it_is_kept_for_further_calls_until_the_model_changes(what, make_encoder, monkeypatch, no_hooks_left):
    encoder = make_encoder(template=WORDS + "{text}", memory_tokens=0, attention="causal", pooling="mean", lora={})
    assert 52 in encoder.template.rows(TEXTS)[0].ids[:20], "the one embedding that is written to stands in the prompt"
    shared = shared_prefix(encoder.template.rows(TEXTS))
    seen = counted(encoder)
    first = encoder.encode(TEXTS)
    assert seen.count(shared) == 1
    seen.clear()
    assert np.array_equal(encoder.encode(TEXTS), first)
    assert np.array_equal(encoder.encode(SENTENCES[0]), encoder.encode([SENTENCES[0]])[0])
    assert shared not in seen
    found = changes(encoder, monkeypatch)
    assert tuple(found) == CHANGES
    with torch.no_grad():
        found[what]()
    seen.clear()
    after = encoder.encode(TEXTS)
    assert shared in seen
    wanted = plain(encoder, TEXTS, monkeypatch)
    assert np.abs(after - wanted).max() < (2e-2 if what == "another precision" else 5e-6)
    assert np.abs(after - first).max() > 1e-4 or what in UNFELT


def test_hooks_of_the_library_leave_it_in_place(make_encoder):
    """Those that record states for `output_hidden_states` stay on the layers for good."""
    encoder = make_encoder(template=WORDS + "{text}", memory_tokens=0, attention="causal", pooling="last")
    with torch.no_grad():
        encoder.backbone.inner(encoder.tokens(TEXTS).input_ids, output_hidden_states=True)
    assert any(module._forward_hooks for module in encoder.modules()), "the library no longer leaves any"
    encoder.encode(TEXTS)
    assert encoder.prefixes.of(encoder.backbone)._kept


@pytest.mark.parametrize("make", [lambda t: t, lambda t: t.T, lambda t: t[:, :300:3], lambda t: t[:1].expand(9, -1)])
def test_writes_that_torch_does_not_count_show_in_tensors_of_any_layout(make):
    whole = torch.randn(400, 512)
    tensor = make(whole)
    before = tensors_fingerprint([tensor])
    assert tensors_fingerprint([tensor]) == before
    whole.data.mul_(1.01)
    assert tensors_fingerprint([tensor]) != before


def test_it_is_forgotten_when_asked(make_encoder):
    encoder = make_encoder(template=WORDS + "{text}", memory_tokens=0, attention="causal")
    encoder.encode(TEXTS)
    encoder.prefixes.forget()
    assert not encoder.prefixes.of(encoder.backbone)._kept


def test_the_adapter_off_and_on_again(make_encoder, monkeypatch):
    encoder = make_encoder(template=WORDS + "{text}", memory_tokens=0, attention="causal", pooling="mean", lora={})
    on = encoder.encode(TEXTS)
    with encoder.backbone.adapter_off():
        off = encoder.encode(TEXTS)
        assert np.abs(off - plain(encoder, TEXTS, monkeypatch)).max() < 5e-6
    assert np.abs(on - off).max() > 1e-3
    assert np.array_equal(encoder.encode(TEXTS), on)


def test_a_vector_does_not_depend_on_what_was_embedded_before(make_encoder):
    make = partial(make_encoder, template=WORDS + "{instruction}{text}", memory_tokens=0, attention="causal")
    encoder = make()
    for prompt in ("Find: ", "Find it now, and do not wait: ", ""):
        for texts in (TEXTS, SENTENCES[:2], SENTENCES[0], TEXTS):
            assert np.array_equal(encoder.encode(texts, prompt=prompt), make().encode(texts, prompt=prompt))


def test_what_is_kept_is_bounded(make_encoder):
    encoder = make_encoder(template=WORDS + "{instruction}{text}", memory_tokens=0, attention="causal")
    config = encoder.backbone.causal_lm.config
    head = config.hidden_size // config.num_attention_heads
    keys = 2 * config.num_hidden_layers * config.num_key_value_heads * head
    each = 4 * (2 * config.hidden_size + keys)  # bytes of a token: input embedding, state, keys and values in float32
    encoder.prefixes.reuse.most = 200 * each
    seen = counted(encoder)
    for number in range(8):
        encoder.encode(TEXTS, prompt=f"Number {number}: ")
    kept = encoder.prefixes.of(encoder.backbone)._kept
    lengths = [len(beginning.states[0]) for beginning in kept.values()]
    assert 100 < sum(lengths) <= 200
    assert encoder.prefixes.bytes == sum(lengths) * each
    seen.clear()
    encoder.encode(TEXTS, prompt="Number 7: ")
    assert max(lengths) not in seen
    assert encoder.prefixes.reuse.misses == 8 and encoder.prefixes.reuse.hits > 0
    encoder.prefixes.reuse.most = 1
    encoder.encode(TEXTS, prompt="Number 8: ")
    assert len(kept) == 1  # the latest always stays


def test_the_least_recently_used_prefix_is_dropped_first(make_encoder):
    encoder = make_encoder(template=WORDS + "{instruction}{text}", memory_tokens=0, attention="causal")
    encoder.encode(TEXTS, prompt="Number 0: ")
    encoder.prefixes.reuse.most = 2 * encoder.prefixes.bytes
    for number in (1, 0, 2):
        encoder.encode(TEXTS, prompt=f"Number {number}: ")
    assert encoder.prefixes.reuse.misses == 3
    encoder.encode(TEXTS, prompt="Number 0: ")
    assert encoder.prefixes.reuse.misses == 3
    encoder.encode(TEXTS, prompt="Number 1: ")
    assert encoder.prefixes.reuse.misses == 4


def test_a_copy_keeps_nothing(make_encoder):
    encoder = make_encoder(template=WORDS + "{text}", memory_tokens=0, attention="causal")
    encoder.encode(TEXTS)
    assert encoder.prefixes.of(encoder.backbone)._kept
    for copied in (copy.deepcopy(encoder.prefixes), pickle.loads(pickle.dumps(encoder.prefixes))):  # noqa: S301
        assert not copied.of(encoder.backbone)._kept


def test_no_two_layers_stand_beside_a_batch_at_once(make_encoder, monkeypatch):
    """Keys of a whole row, beginning included, exist for one layer at a time."""
    encoder = make_encoder(template=WORDS + "{text}", memory_tokens=0, attention="causal")
    alive: list[weakref.ref[torch.Tensor]] = []
    update = module._Before.update

    def watched(self, *args: object, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
        assert all(tensor() is None for tensor in alive)
        made = update(self, *args, **options)
        alive.extend(map(weakref.ref, made))
        return made

    monkeypatch.setattr(module._Before, "update", watched)
    encoder.encode(TEXTS, batch_size=4)
    assert len(alive) >= 2 * 2 * 3
