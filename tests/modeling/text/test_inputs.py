"""Texts in every container give the vectors of a list; what is no text, and options that say nothing, are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import Dataset

from embrew.encoder import Encoder
from embrew.text.texts import lengths_of


def polars_series(texts: list[Any]) -> Any:
    """A series of a library that takes a second to import."""
    import polars

    return polars.Series(texts)


TEXTS = ["a fox", "", " two  spaces ", "the river"]
CONTAINERS: dict[str, Callable[[list[str]], Any]] = {
    "tuple": tuple,
    "generator": lambda texts: (text for text in texts),
    "iterator": iter,
    "keys": lambda texts: dict.fromkeys(texts).keys(),
    "numpy str": np.array,
    "numpy object": lambda texts: np.array(texts, dtype=object),
    "numpy StringDType": lambda texts: np.array(texts, dtype=np.dtypes.StringDType()),
    "numpy strings in a list": lambda texts: list(np.array(texts)),
    "pandas Series": lambda texts: pd.Series(texts, index=range(10, 10 + len(texts))),
    "pandas object Series": lambda texts: pd.Series(texts, dtype=object),
    "pandas category": lambda texts: pd.Series(texts, dtype="category"),
    "pandas Index": pd.Index,
    "polars Series": lambda texts: polars_series(texts),
    "arrow array": pa.array,
    "arrow chunks": lambda texts: pa.chunked_array([texts[:1], texts[1:]]),
    "column of a data set": lambda texts: Dataset.from_dict({"text": texts})["text"],
}
SINGLE = {"str": "a fox", "numpy str": np.str_("a fox"), "no dimensions": np.array("a fox")}
TOKENS = {
    "list": [5, 6, 7],
    "tuple": (5, 6, 7),
    "array": np.array([5, 6, 7]),
    "numpy numbers": [np.int64(5), np.int32(6), 7],
    "tensor": torch.tensor([5, 6, 7]),
}
NOT_TEXTS: list[tuple[Any, str]] = [
    (None, "given as NoneType.*a missing text"),
    (b"a", r"given as bytes.*decode it"),
    ({"a": 1}, "given as dict"),
    ({"a", "b"}, "given as set"),
    (3, "given as int"),
    (pd.DataFrame({"text": ["a"]}), "given as DataFrame; give one of its columns"),
    ([True], "text 0 is bool"),
    ([1, True], "text 0 holds a bool at position 1"),
    ([1, "a"], "text 0 holds a str at position 1"),
    (["a", None], "text 1 is NoneType.*a missing text"),
    (["a", float("nan")], "text 1 is float.*NaN"),
    (pd.Series(["a", "b", None]), "text 2 is"),
    (pd.Series(["a", pd.NA], dtype="string"), "text 1 is NAType"),
    pytest.param(lambda: polars_series(["a", None]), "text 1 is NoneType", id="polars Series"),
    (["a", b"b"], "text 1 is bytes.*decode"),
    (["a", {"text": "b"}], "text 1 is dict.*give its text"),
    (np.array([1.5, 2.5]), "text 0 is float"),
    (["a", [3, True]], "text 1 holds a bool at position 1"),
    (np.array([True]), "text 0 is bool"),
]
BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"prompt_name": ""}, ValueError, "prompt_name=''; this encoder has document, query"),
    ({"prompt_name": "passage"}, ValueError, "prompt_name='passage'; this encoder has document, query"),
    ({"prompt_name": 3}, TypeError, "prompt_name=3 is a int; give a string"),
    ({"prompt": ["find"]}, TypeError, "prompt=.*is a list; give a string"),
    ({"truncate_dim": 0}, ValueError, "truncate_dim=0; choose from 1 to 32"),
    ({"truncate_dim": -1}, ValueError, "truncate_dim=-1; choose from 1 to 32"),
    ({"truncate_dim": 33}, ValueError, "truncate_dim=33; choose from 1 to 32"),
    ({"truncate_dim": 8.0}, TypeError, "truncate_dim=8.0 is a float"),
    ({"max_length": 0}, ValueError, "max_length=0; give 1 or more"),
    ({"max_length": True}, TypeError, "max_length=True is a bool"),
    ({"convert_to_numpy": "False"}, TypeError, "convert_to_numpy='False' is a str; give True or False"),
    ({"convert_to_tensor": None}, TypeError, "convert_to_tensor=None is a NoneType; give True or False"),
    ({"show_progress_bar": "x"}, TypeError, "show_progress_bar='x' is a str; give True or False"),
    ({"batch_size": 0}, ValueError, "batch_size=0; give 1 or more"),
    ({"batch_tokens": 0}, ValueError, "batch_tokens=0; give 1 or more"),
    ({"batch_size": True}, TypeError, "batch_size=True is a bool; give a whole number"),
    ({"num_layers": 0}, ValueError, "num_layers=0; choose from 1 to 2"),
    ({"num_layers": 3}, ValueError, "num_layers=3; choose from 1 to 2"),
    ({"normalize_embeddings": "false"}, TypeError, "normalize_embeddings='false' is a str; give True or False"),
    ({"precision": "float16"}, ValueError, "precision='float16'; choose from float32, int8"),
    ({"task": "query"}, TypeError, "unexpected keyword argument 'task'"),
]


@pytest.fixture
def encoder(make_encoder) -> Encoder:
    return make_encoder()


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container(container, encoder):
    expected = encoder.encode(TEXTS)
    for method in ("encode", "encode_query", "encode_document"):
        assert np.array_equal(getattr(encoder, method)(CONTAINERS[container](TEXTS)), expected), method


@pytest.mark.parametrize("single", SINGLE)
def test_one_text_gives_one_vector(single, encoder):
    assert np.array_equal(encoder.encode(SINGLE[single]), encoder.encode(["a fox"])[0])


@pytest.mark.parametrize("kind", TOKENS)
def test_token_ids(kind, encoder):
    expected = encoder.encode([[5, 6, 7], [8, 9, 10]])
    assert np.array_equal(encoder.encode(TOKENS[kind]), expected[0])
    assert np.array_equal(encoder.encode([TOKENS[kind], [8, 9, 10]]), expected)
    assert np.array_equal(encoder.encode(np.array([[5, 6, 7], [8, 9, 10]])), expected)
    for wrong in (-1, 10**6):
        with pytest.raises(ValueError, match=f"text 1 holds the token id {wrong}; ids are from 0 to 302"):
            encoder.encode([[5], [5, wrong]])


@pytest.mark.parametrize(("inputs", "words"), NOT_TEXTS)
def test_what_is_no_text(inputs, words, encoder):
    with pytest.raises(TypeError, match=words):
        encoder.encode(inputs() if callable(inputs) else inputs)


@pytest.mark.parametrize(("options", "error", "words"), BAD_OPTIONS)
def test_options_that_say_nothing(options, error, words, encoder):
    for method in (encoder.encode, encoder.encode_query, encoder.encode_document):
        with pytest.raises(error, match=words):
            method(["a"], **options)


def test_length_limits(make_encoder):
    assert lengths_of(8) == lengths_of({"document": 8, "query": 8}) == {"query": 8, "document": 8}
    for wrong, error, words in (
        (0, ValueError, "max_length=0; give 1 or more"),
        (True, TypeError, "max_length=True is a bool"),
        ({"query": 8}, ValueError, "max_length has query; give query and document"),
        ({"query": 8, "document": 0}, ValueError, "max_length=0; give 1 or more"),
        (None, TypeError, "max_length=None"),
    ):
        with pytest.raises(error, match=words):
            make_encoder(max_length=wrong)


def test_truncation_within_a_context(encoder):
    expected = encoder.encode(TEXTS, truncate_dim=8)
    with encoder.truncate_embeddings(8):
        assert np.array_equal(encoder.encode(TEXTS), expected)
        assert encoder.get_embedding_dimension() == encoder.get_sentence_embedding_dimension() == 8
    assert encoder.get_embedding_dimension() == 32
    with pytest.raises(ValueError, match="truncate_dim=0"), encoder.truncate_embeddings(0):
        pass
