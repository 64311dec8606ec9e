import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from embrew import progress
from embrew.evaluation.generator import PROMPT, Generator, find_generator
from tests.conftest import CONFIGS, tiny_model

CONTEXTS = ["Ada was born in London.", "Bonn {question}", "A long text. " * 12, "<s> is a token, </s> too"]
QUESTIONS = ["Where was Ada born?", "What is Bonn?", "How long is it?", "What is a token?"]


@pytest.fixture(scope="module")
def generator(tokenizer):
    """A tiny Llama with room for the prompt, whose own settings would not be greedy."""
    torch.manual_seed(0)
    config = CONFIGS["llama"].__class__(**{**CONFIGS["llama"].to_dict(), "max_position_embeddings": 900})
    model = AutoModelForCausalLM.from_config(config).eval()
    model.load_state_dict(tiny_model("llama").state_dict())
    model.generation_config.update(do_sample=True, temperature=5.0, repetition_penalty=3.0)
    return Generator(model, copy.deepcopy(tokenizer), max_new_tokens=6)


def greedy(generator, prompt, steps=6):
    """The likeliest token, again and again."""
    ids = generator._ids(prompt)
    start = len(ids)
    for _ in range(steps):
        with torch.no_grad():
            ids.append(int(generator.model(torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] == 2:
            break
    text = generator.tokenizer.decode(ids[start:], skip_special_tokens=True)
    return text.strip().split("\n")[0].strip()


def test_a_batch_answers_as_one_prompt_does_greedily(generator):
    written = generator.answers(CONTEXTS, QUESTIONS, batch_size=3)
    expected = [greedy(generator, generator.prompt(*pair)) for pair in zip(CONTEXTS, QUESTIONS, strict=True)]
    assert written == expected
    assert len(set(written)) > 1


def test_braces_and_special_tokens_are_text(generator):
    assert "Context: Bonn {question}.\nQuestion: What is Bonn?." in generator.prompt(CONTEXTS[1], QUESTIONS[1])
    assert generator._ids("<s> </s>").count(1) == 1  # its own beginning only


def test_known_prompts_are_not_asked_again(generator, monkeypatch, capsys):
    generator.answered.clear()
    asked = []
    monkeypatch.setattr(generator, "_continue", lambda prompts: asked.extend(prompts) or ["x"] * len(prompts))
    assert generator.answers(CONTEXTS[:2] + CONTEXTS[:1], QUESTIONS[:2] + QUESTIONS[:1]) == ["x"] * 3
    assert len(asked) == 2
    generator.answers(CONTEXTS[:3], QUESTIONS[:3])
    assert len(asked) == 3
    monkeypatch.setattr(progress, "_style", "off")  # as --quiet does
    generator.answered.clear()
    generator.answers(CONTEXTS[:1], QUESTIONS[:1], show_progress_bar=True)
    assert capsys.readouterr().err == ""
    generator.answered.clear()


def test_the_first_line_counts(generator, monkeypatch):
    written = generator.tokenizer(" \n Paris \nIt is in France", add_special_tokens=False)["input_ids"]
    monkeypatch.setattr(
        generator.model, "generate", lambda input_ids, **_: torch.cat([input_ids, torch.tensor([written])], dim=1)
    )
    assert generator._continue(["x"]) == ["Paris"]


def test_a_long_context_loses_its_end(generator):
    prompt = generator.prompt("word and more " * 400, "Who wrote it?")
    assert len(generator._ids(prompt)) <= 900 - 6
    assert len(generator._ids(prompt)) > 900 - 30
    assert "Context: word and more" in prompt
    assert prompt.endswith("Output:")
    assert "Question: Who wrote it?." in prompt
    assert generator.prompt("short", "Who?") == PROMPT.format(context="short", question="Who?")
    with pytest.raises(ValueError, match="the prompt without a context has .* but the generator has positions for 900"):
        generator.prompt("x", "why " * 900)


def test_only_causal_language_models_generate(encoder_folder, model_folder, tmp_path):
    with pytest.raises(ValueError, match="is a BertForMaskedLM, which does not continue texts; give a causal LM"):
        find_generator(str(encoder_folder("bert")))
    with pytest.raises(FileNotFoundError, match=r"model 'no/model-here' is not nano, smollm2-135m, not a folder"):
        find_generator("no/model-here")
    found = find_generator(str(model_folder("llama")))
    assert (found.kind, found.name) == ("folder", "llama")
    assert len(found.sha256) == 64
    assert find_generator("nano").name == "nano"


def test_a_folder_is_opened(model_folder):
    opened = Generator.open(str(model_folder("llama")), max_new_tokens=3)
    assert opened.model.generation_config.max_new_tokens == 3
    assert opened.tokenizer.padding_side == "left"
