"""A resident model chats as the base, to the bit, and embeds as each encoder that shares its tensors."""

from __future__ import annotations

import copy
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import embrew
from embrew.chat import Sampling, check_room, prompt_ids
from embrew.encoder import Encoder
from embrew.resident import Resident
from tests.conftest import SENTENCES
from tests.models import stir
from tests.residents import KINDS, TEMPLATE, tenant

TEXTS: list[Any] = [*SENTENCES, "", "a", "ends with </s> and <pad>", "beyond both limits " * 30, [70, 71, 72]]
MESSAGES = [{"role": "user", "content": "what is a fox?"}]


@pytest.fixture(scope="module")
def resident(resident_base: Path, tenants: dict[str, Path]) -> Resident:
    """With an encoder of each kind."""
    opened = embrew.Resident.open(resident_base)
    for name, folder in tenants.items():
        opened.load(name, folder)
    return opened


def vectors_of(encoder: Encoder) -> list[np.ndarray]:
    contexts = [{"prompt_name": name} for name in encoder.contexts]
    return [
        encoder.encode_query(TEXTS),
        encoder.encode_document(TEXTS),
        *(encoder.encode(TEXTS, **c) for c in contexts),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_the_folder_opened_alone(kind, resident, tenants):
    opened = vectors_of(Encoder.from_pretrained(tenants[kind], merge_adapter=True))
    shared = vectors_of(resident.encoders[kind])
    assert len(opened) == len(shared) == (3 if kind == "tasks" else 2)
    for one, other in zip(opened, shared, strict=True):
        assert np.abs(one - other).max() <= 1e-5
    untrained = vectors_of(resident.encoders["untrained"])
    assert kind == "untrained" or any(
        one.shape != other.shape or np.abs(one - other).max() > 1e-2
        for one, other in zip(shared, untrained, strict=False)
    ), "its adapter does something"


def rows_of(encoder: Encoder, texts: list[Any]) -> list[Any]:
    return [rows[0] for rows in encoder.rows_by_text(texts, "find: ", None, 40)]


def test_rows_of_several_encoders_share_a_forward_pass(resident):
    """In any order, and with one row of an encoder or several."""
    encoders = [each for each in resident.encoders.values() if each.attention.mode == "causal"]
    assert len(encoders) == len(KINDS) - 1
    pairs = [(encoder, row) for number, encoder in enumerate(encoders) for row in rows_of(encoder, TEXTS[number::2])]
    mixed = [pairs[i] for i in torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0)).tolist()]
    vectors = resident.embed_rows(*map(list, zip(*mixed, strict=True)))
    options = {"context": None, "num_layers": None, "batch_size": 1, "batch_tokens": None}
    for (encoder, row), vector in zip(mixed, vectors, strict=True):
        alone = encoder.embed_rows(lambda *_, row=row: [row], 1, **options)[0]
        assert vector.shape == alone.shape and (vector - alone).abs().max() <= 2e-6 * max(1, alone.abs().max())


def test_the_language_model_is_the_base_to_the_bit(resident, resident_base):
    """With encoders loaded, and after some of them have computed."""
    plain = AutoModelForCausalLM.from_pretrained(resident_base)
    tokenizer = AutoTokenizer.from_pretrained(resident_base)
    for encoder in resident.encoders.values():
        encoder.encode(SENTENCES)
    ids = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(resident.model(ids).logits, plain(ids).logits)
    assert prompt_ids(resident.tokenizer, MESSAGES) == ids[0].tolist()
    greedy = plain.generate(ids, max_new_tokens=20, do_sample=False)[0, ids.shape[1] :].tolist()
    answer = resident.chat(MESSAGES, sampling=Sampling(max_tokens=20, temperature=0))
    assert answer.ids == greedy and answer.prompt_tokens == ids.shape[1]
    assert answer.text == tokenizer.decode(greedy, skip_special_tokens=True)


def test_an_encoder_has_no_copy_of_the_base(resident):
    shared = {tensor.data_ptr() for tensor in resident.model.state_dict().values()}
    size = sum(tensor.nbytes for tensor in resident.model.state_dict().values())
    for name, encoder in resident.encoders.items():
        tensors = encoder.backbone.state_dict().values()
        own = {t.data_ptr(): t.nbytes for t in tensors if t.data_ptr() not in shared}
        assert sum(own.values()) < 0.25 * size, name
        assert {p.data_ptr() for p in encoder.parameters()} & shared
    own = [t for t in resident._together.model.state_dict().values() if t.data_ptr() not in shared]
    assert not own, "what computes rows of several encoders has no tensors of its own"


def test_equal_tokenizers_are_one(resident, tenants):
    alone = {kind: Encoder.from_pretrained(folder).tokenizer for kind, folder in tenants.items()}
    texts = {kind: tokenizer.backend_tokenizer.to_str() for kind, tokenizer in alone.items()}
    shared = {kind: resident.encoders[kind].tokenizer for kind in tenants}
    assert len({id(tokenizer) for tokenizer in shared.values()}) == len(set(texts.values())) < len(tenants)
    for kind, tokenizer in shared.items():
        assert tokenizer.backend_tokenizer.to_str() == texts[kind]
        assert all(template.tokenizer is tokenizer for template in resident.encoders[kind].templates)


def test_several_encoders_are_loaded_and_unloaded(resident_base, tenants):
    resident = Resident.open(resident_base, max_encoders=2)
    first, second = (resident.load(name, tenants[kind]) for name, kind in (("a", "contrast"), ("b", "chain")))
    vectors, rows = second.encode(SENTENCES), rows_of(first, ["a"])
    for name, match in (("a", "is loaded; unload it first"), ("c", "2 encoders are loaded, which is max_encoders")):
        with pytest.raises(ValueError, match=match):
            resident.load(name, tenants["memory"])
    gone = weakref.ref(first.backbone)
    resident.unload("a")
    assert resident.embed_rows([first], rows) is None, "an encoder that is no longer loaded"
    del first
    gc.collect()
    assert gone() is None and list(resident.encoders) == ["b"]
    with pytest.raises(ValueError, match="no encoder 'a'; loaded are b"):
        resident.unload("a")
    assert np.array_equal(resident.load("a", tenants["memory"]).encode(["x"]), resident.encoders["a"].encode(["x"]))
    assert np.array_equal(second.encode(SENTENCES), vectors)


def test_encoders_that_are_no_loras_on_this_base_are_refused(resident_base, tenants, model_folder, tmp_path):
    resident = Resident.open(resident_base)
    before = {name: tensor.clone() for name, tensor in resident.model.state_dict().items()}
    other = tenant(model_folder("qwen2"), "contrast", tmp_path / "other")
    whole = Encoder.from_pretrained(resident_base, pooling="mean")
    whole.backbone.train_all()
    whole.eval().save_pretrained(tmp_path / "whole", verify="off")
    for number, lora in enumerate(({"use_dora": True}, {}, {"lora_bias": True})):
        encoder = Encoder.from_pretrained(resident_base, pooling="mean")
        encoder.backbone.add_lora({"r": 4, **lora})
        stir(encoder.backbone)
        encoder.eval().save_pretrained(tmp_path / f"lora{number}", verify="off")
    config = tmp_path / "lora1" / "adapters" / "0" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "init_lora_weights": "pissa"}))
    (tmp_path / "lora1" / "checksums.json").unlink()
    cases = {
        other: "other was trained on .*, and the base in memory is base",
        tmp_path / "whole": "whole holds whole weights",
        tmp_path / "lora0": "lora0 has an adapter that is more than a LoRA on linear layers",
        tmp_path / "lora1": "lora1 has a LoRA with init_lora_weights='pissa', which changes the base weights",
        tmp_path / "lora2": "lora2 has an adapter that is more than a LoRA on linear layers",
    }
    for folder, match in cases.items():
        with pytest.raises(ValueError, match=match):
            resident.load("x", folder)
    with pytest.raises(FileNotFoundError, match="is no encoder written by embrew"):
        resident.load("x", resident_base)
    assert not resident.encoders
    assert all(torch.equal(tensor, before[name]) for name, tensor in resident.model.state_dict().items())


# Chats


def test_draws_depend_on_the_seed_alone(resident):
    def answer(**options: Any) -> list[int]:
        return list(resident.chat(MESSAGES, sampling=Sampling(max_tokens=12, **options)).ids)

    first = answer(seed=1)
    torch.rand(3)
    assert answer(seed=1) == first != answer(seed=2)
    assert answer(seed=1, top_p=1e-6) == answer(temperature=0) == answer(seed=3, temperature=1e-4)
    assert answer() != answer(), "without a seed"


def test_tokens_are_drawn_as_often_as_they_are_probable(resident):
    """The frequencies of the first token are softmax(logits / T), among the most probable with the sum top_p."""
    ids = torch.tensor([prompt_ids(resident.tokenizer, MESSAGES)])
    with torch.no_grad():
        expected = (10 * resident.model(ids).logits[0, -1] / 0.7).softmax(-1)
    ordered, order = expected.sort(descending=True)
    chosen = order[(ordered.cumsum(0) - ordered) < 0.6]
    model = copy.copy(resident)
    model.model = copy.deepcopy(resident.model)
    model.model.get_output_embeddings().weight = torch.nn.Parameter(10 * resident.model.get_output_embeddings().weight)
    counts = torch.zeros(len(expected))
    for seed in range(400):
        sampling = Sampling(max_tokens=1, temperature=0.7, top_p=0.6, seed=seed)
        counts[model.chat(MESSAGES, sampling=sampling).ids[0]] += 1
    assert set(counts.nonzero().flatten().tolist()) <= set(chosen.tolist())
    wanted = expected[chosen] / expected[chosen].sum()
    error = (wanted * (1 - wanted) / 400).sqrt()
    assert ((counts[chosen] / 400 - wanted).abs() <= 4.5 * error + 1e-3).all()


def test_an_answer_ends_before_a_stop_and_its_parts_are_its_text(resident):
    full = resident.chat(MESSAGES, sampling=Sampling(max_tokens=24, temperature=0))
    assert full.finish_reason == "length" and len(full.ids) == 24 and len(full.text) > 8
    for stop in (full.text[5:8], full.text[4], full.text[-2:]):
        parts: list[str] = []
        answer = resident.chat(
            MESSAGES, sampling=Sampling(max_tokens=24, temperature=0, stop=["never", stop]), send=parts.append
        )
        assert answer.text == "".join(parts) == full.text[: full.text.index(stop)], stop
        assert answer.finish_reason == "stop" and len(answer.ids) <= 24
    held = resident.chat(MESSAGES, sampling=Sampling(max_tokens=24, temperature=0, stop=[full.text[-2:] + "never"]))
    assert held.text == full.text and held.finish_reason == "length", "what was held back is sent at the end"


def test_an_answer_ends_at_the_token_of_the_end_and_at_the_last_position(resident):
    first = resident.chat(MESSAGES, sampling=Sampling(max_tokens=8, temperature=0)).ids
    model = copy.copy(resident)
    model.model = copy.copy(resident.model)
    model.model.generation_config = GenerationConfig(eos_token_id=[first[3]], repetition_penalty=50.0, do_sample=True)
    answer = model.chat(MESSAGES, sampling=Sampling(max_tokens=8, temperature=0))
    assert answer.ids == first[: first.index(first[3]) + 1] and answer.finish_reason == "stop"
    positions = resident.model.config.max_position_embeddings
    long = [{"role": "user", "content": "word " * (positions + 1)}]
    with pytest.raises(ValueError, match=f"tokens, and the model has {positions} positions; shorten them"):
        resident.chat(long)
    assert check_room(resident.model, positions - 3) == 3


def test_messages_that_no_template_takes_are_refused(resident, model_folder):
    with pytest.raises(ValueError, match="the chat template of the model refuses the messages: unknown role"):
        resident.chat([{"role": "someone", "content": "a"}])
    plain = Resident.open(model_folder("llama"))
    with pytest.raises(ValueError, match="has no chat template; give one"):
        plain.chat(MESSAGES)
    sampling = Sampling(max_tokens=4, temperature=0)
    assert plain.chat(MESSAGES, chat_template=TEMPLATE, sampling=sampling).ids == (
        resident.chat(MESSAGES, sampling=sampling).ids
    )
