"""The settings of an encoder: each one survives its way through recipe and folder, and a change of it is noticed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from embrew.encoder import Encoder
from embrew.recipe import Recipe, build
from embrew.recipe.build.encoders import check_same_encoder
from embrew.settings.encoder import EncoderSettings, Pooling
from embrew.storage.saving import verify_folder
from tests.conftest import by_default

BASE: dict[str, Any] = {
    "template": "{instruction}{text}{memory}",
    "memory_tokens": 3,
    "pooling": {"mode": "last"},
    "max_length": {"query": 48, "document": 64},
}
OTHER: dict[str, Any] = {  # a value of every setting that is not that of BASE
    "template": "Say: {instruction}{text}{memory}",
    "preparation": "sentence",
    "memory_ratio": 5.0,
    "words_after": "joined",
    "attention": "bidirectional",
    "pooling": {"mode": "mean", "over": "memory", "slots": [2, 0]},
    "prompts": {"query": "Find: ", "document": ""},
    "default_prompt_name": "query",
    "max_length": {"query": 48, "document": 80},
    "normalize": False,
    "demonstrations": {"compress": "none", "budget": 30},
    "space": "0123456789abcdef",
}


def test_every_setting_is_tried():
    assert OTHER.keys() == EncoderSettings.model_fields.keys()


@pytest.mark.parametrize("name", EncoderSettings.model_fields)
def test_from_a_recipe_to_a_folder_and_back(name, model_folder, tmp_path, monkeypatch):
    """Recipe → encoder → folder → encoder; then a change in memory, and one in the recipe, are noticed."""
    values = {**BASE, "model": str(model_folder("llama"))}
    plain, changed = (Recipe.from_values({"encoder": each}) for each in (values, {**values, name: OTHER[name]}))
    settings = changed.encoder.settings
    assert list(plain.encoder.settings.differences(settings)) == [name]
    encoder = build.encoder(changed)
    assert encoder.settings == settings
    encoder.save_pretrained(tmp_path / "saved", verify="off")
    opened = Encoder.from_pretrained(tmp_path / "saved")
    assert opened.settings == settings and opened.weights_hash() == encoder.weights_hash()
    check_same_encoder(changed, opened, tmp_path)
    with pytest.raises(ValueError, match=rf"encoder\.{name}="):
        check_same_encoder(plain, opened, tmp_path)
    opened.settings = plain.encoder.settings  # only what says how texts are read; nothing was made of it
    with pytest.raises(RuntimeError, match=rf"embrew.json holds {name}="):
        verify_folder(opened, tmp_path / "saved", "fast")


@pytest.mark.parametrize("name", by_default(["pooling", "demonstrations", "max_length"], EncoderSettings.model_fields))
def test_python_takes_what_a_recipe_takes(name, model_folder):
    given = {**BASE, name: OTHER[name]}
    recipe = Recipe.from_values({"encoder": {**given, "model": str(model_folder("llama"))}})
    assert Encoder.from_pretrained(model_folder("llama"), **given).settings == recipe.encoder.settings


def test_other_settings_on_the_same_weights(make_encoder):
    encoder = make_encoder(memory_tokens=0, attention="causal", pooling="mean")
    changes = {"attention": "bidirectional", "template": "Say: {text}", "max_length": 9, "normalize": False}
    made = encoder.with_settings(**changes)
    wanted = make_encoder(memory_tokens=0, pooling="mean", **changes)
    assert (made.encode(["one two three"]) == wanted.encode(["one two three"])).all()
    assert made.weights_hash() == wanted.weights_hash() and made.backbone is encoder.backbone
    assert encoder.attention.mode == "causal" and encoder.templates[0].pattern == "{instruction}{text}"
    with pytest.raises(ValueError, match="memory_tokens=0 do not go together"):
        encoder.with_settings(template="{text}{memory}")


def test_a_setting_at_its_default_is_not_written():
    plain = EncoderSettings.create()
    assert list(plain.as_dict()) == [
        *("template", "words_after", "attention", "pooling", "prompts", "max_length", "normalize")
    ]
    assert plain.as_dict()["pooling"] == {"mode": "last", "over": "all"}
    for name, value in OTHER.items():
        template = BASE["template"] if name not in ("template", "default_prompt_name") else OTHER["template"]
        settings = EncoderSettings.create(**{"template": template, name: value})
        assert EncoderSettings.from_dict(json.loads(json.dumps(settings.as_dict()))) == settings
    joined = EncoderSettings.create(template='"{text}" means:"')
    assert joined.as_dict()["words_after"] == "joined"


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"poling": "mean"}, TypeError, "poling is not a setting of an encoder; choose from template, "),
        ({"pooling": "max"}, ValueError, r"pooling\.mode='max'; choose from cls, last"),
        ({"pooling": {"mode": "mean", "head": 2}}, ValueError, r"unknown key pooling\.head; valid keys: mode, over"),
        ({"pooling": {"mode": "mean", "latents": 0}}, ValueError, r"pooling\.latents=0; allowed: greater than 0"),
        ({"attention": "diagonal"}, ValueError, "attention='diagonal'; choose from causal, bidirectional"),
        ({"preparation": "sentences"}, ValueError, "preparation='sentences'; choose from none, sentence"),
        ({"template": []}, ValueError, "template=.*at least 1 item"),
        ({"template": "{query}"}, ValueError, r"template='{query}' has the field {query}"),
        ({"max_length": 1.5}, TypeError, "max_length=1.5 is a float; give a whole number"),
        ({"max_length": {"query": 8}}, ValueError, "give query and document, or one number"),
        ({"normalize": "no"}, ValueError, "normalize='no'; allowed: a valid boolean"),
        ({"prompts": {"query": 3}}, ValueError, r"prompts\.query=3; allowed: a valid string"),
        ({"default_prompt_name": "task"}, ValueError, "default_prompt_name='task'; choose from document, query"),
        ({"pooling": Pooling("mean", "memory")}, ValueError, "pooling over memory needs memory_tokens"),
        ({"pooling": Pooling("mean", "echo")}, ValueError, "put {echo} after {text}"),
    ],
)
def test_what_is_refused_in_python(given, error, words):
    with pytest.raises(error, match=words) as caught:
        EncoderSettings.create(**given)
    assert "\n" not in str(caught.value)


def test_one_template_in_a_list_is_that_template():
    """In hashes, too: what was evaluated or encoded with one form is found with the other."""
    single = EncoderSettings.create(template="a {text}")
    assert EncoderSettings.create(template=["a {text}"]) == EncoderSettings.create(template=("a {text}",)) == single
    assert single.as_dict()["template"] == "a {text}"
    encoder = {**BASE, "model": "nano", "template": ["{text}{memory}"]}
    assert Recipe.from_values({"encoder": encoder}).encoder.settings.template == "{text}{memory}"


def test_prompts_lengths_and_normalising_can_be_assigned(model_folder):
    encoder = Encoder.from_pretrained(model_folder("llama"), device="cpu", pooling="mean")
    encoder.prompts = {"query": "find: "}
    encoder.default_prompt_name = "query"
    encoder.max_length = 8
    encoder.normalize = False
    assert encoder.prompts == {"query": "find: ", "document": ""}
    other = Encoder.from_pretrained(
        model_folder("llama"), device="cpu", pooling="mean", prompts={"query": "find: "}, default_prompt_name="query",
        max_length=8, normalize=False,
    )  # fmt: skip
    assert encoder.settings == other.settings
    assert (encoder.encode(["a text that is longer than eight tokens"]) == other.encode(
        ["a text that is longer than eight tokens"]
    )).all()  # fmt: skip
    for name, value in (("default_prompt_name", "absent"), ("max_length", 0), ("normalize", "yes"), ("prompts", 3)):
        with pytest.raises((ValueError, TypeError), match=name):
            setattr(encoder, name, value)
    assert encoder.settings == other.settings


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"pooling": {"mode": "mean", "latents": 4}}, "pooling.latents"),
        ({"demonstrations": {"compress": "none"}}, "demonstrations belong to trained weights"),
    ],
)
def test_settings_with_trained_weights_are_not_replaced(model_folder, given, words):
    encoder = Encoder.from_pretrained(model_folder("llama"), device="cpu", pooling="mean")
    with pytest.raises(ValueError, match=words):
        encoder.with_settings(**given)
