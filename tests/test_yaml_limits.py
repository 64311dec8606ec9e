"""YAML that would grow without limit, or that is nested too deeply, is one line of error, at once."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from embrew.evaluation.suites import read_suite
from embrew.recipe import Recipe
from embrew.recipe.overrides import parse_override
from embrew.settings.yaml_files import MAX_CHARACTERS, MAX_DEPTH, MAX_VALUES, line_of, parse_yaml
from embrew.sweep.rows import read_sweep

LETTERS = "abcdefghi"


def doubling(form: str) -> str:
    """Nine anchors, each with nine aliases of the one before: 9⁹ values, were they written out."""
    levels = [f"{one}: &{one} " + form.format(", ".join([f"*{before}"] * 9)) for before, one in pairwise(LETTERS)]
    return "\n".join(["a: &a {x: 1, y: 2}", *levels, ""])


TEXTS = {
    "anchors in lists": (doubling("[{}]"), f"more than {MAX_VALUES:,} values, aliases written out"),
    "anchors in merge keys": (doubling("{{<<: [{}]}}"), f"more than {MAX_VALUES:,} values, aliases written out"),
    "a list in itself": ("a: &a [*a]", "the anchor 'a' contains itself"),
    "a mapping in itself": ("a: &a {b: *a}", "the anchor 'a' contains itself"),
    "lists in lists": ("a: " + "[" * 100_000, f"lists and mappings are more than {MAX_DEPTH} deep"),
    "mappings in mappings": ("{a: " * 100_000, f"lists and mappings are more than {MAX_DEPTH} deep"),
    "lists by indentation": ("- " * 100_000, f"lists and mappings are more than {MAX_DEPTH} deep"),
    "mappings by indentation": ("".join(" " * i + "a:\n" for i in range(1000)), f"more than {MAX_DEPTH} deep"),
    "a long text": ("a: " + "x" * MAX_CHARACTERS, "1,000,003 characters; a YAML text may have 1,000,000"),
    "a long number": ("seed: " + "1" * 5000, "cannot be read as int"),
    "not a number": ("seed: !!int many", "'many' cannot be read as int"),
    "no number": ("seed: !!int ''", "'' cannot be read as int"),
    "not a date": ("seed: !!timestamp x", "'x' cannot be read as timestamp"),
    "not a boolean": ("seed: !!bool maybe", "'maybe' cannot be read as bool"),
    "a control character": ("a: 1\nb: \x00", r":2: the character U\+0000 is not allowed in YAML"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_it_is_one_line_at_once(name, tmp_path):
    text, words = TEXTS[name]
    path = tmp_path / "r.yaml"
    path.write_text(text, encoding="utf-8")
    began = time.process_time()
    for read in (Recipe.load, lambda file: read_sweep(file, "llm2comp/nano"), read_suite):
        with pytest.raises(ValueError, match=words) as error:
            read(path)
        assert str(error.value).startswith(str(path)) and len(str(error.value).splitlines()) == 1
    assert time.process_time() - began < 1


@pytest.mark.parametrize("value", ["[" * 100_000, "{a: " * 20_000, "[&a [*a]]", "!!int x"])
def test_overrides_too(value):
    with pytest.raises(ValueError, match="deep|contains itself|cannot be read") as error:
        parse_override(f"stages={value}")
    assert len(str(error.value)) < 500 and len(str(error.value).splitlines()) == 1


def test_keys_of_overrides():
    """20,000 of them took 10 seconds to refuse."""
    with pytest.raises(ValueError, match=f"20,001 nested keys; .* {MAX_DEPTH} deep"):
        parse_override(f"a{'.a' * 20_000}=1")


def test_ordinary_anchors_aliases_and_merge_keys_work():
    text = "base: &b {x: 1, y: [2]}\nlist: [*b, *b]\nmore: {<<: *b, x: 3}\nseveral: {<<: [*b, {z: 4}]}\n&k key: *k\n"
    base = {"x": 1, "y": [2]}
    more, several = {"y": [2], "x": 3}, {**base, "z": 4}
    assert parse_yaml(text) == {"base": base, "list": [base, base], "more": more, "several": several, "key": "key"}
    assert line_of(text, ("several",)) == 4


def test_the_line_of_an_item_of_a_list():
    assert line_of("a:\n  - x\n  - y: 1\n", ("a", 1)) == 3
