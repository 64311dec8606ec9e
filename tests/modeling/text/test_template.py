"""Templates: what becomes which segment, and that only the text is ever cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from embrew.text.pattern import split_pattern
from embrew.text.template import Template
from embrew.text.tokens import Segment
from tests.characters import CHARACTERS
from tests.conftest import SENTENCES

MEMORY = [300, 301]
BOS, EOS = 1, 2


def names(segments: list[int]) -> str:
    return "".join(Segment(s).name[0] for s in segments)  # P, T(EXT), M


def test_segments_of_a_framed_text(tokenizer):
    template = Template('{instruction}say "{text}" now:{memory}', tokenizer, MEMORY)
    (row,) = template.rows(["fox"], instruction="Do: ")
    text = tokenizer.decode([i for i, s in zip(*row, strict=True) if s == Segment.TEXT])
    assert text.strip('"') == "fox"
    assert names(row.segments).endswith("MM") and names(row.segments).startswith("P")
    body = [i for i in row.ids if i not in MEMORY]
    assert tokenizer.decode(body[1:]) == 'Do: say "fox" now:'
    assert body[0] == BOS


def test_what_stands_before_the_text_is_tokenised_with_it(tokenizer):
    template = Template("{instruction}{text}", tokenizer)
    (row,) = template.rows(["the river"], instruction="near ")
    assert row.ids == tokenizer("near the river").input_ids, "as Sentence-Transformers joins prompt and text"


@settings(max_examples=60, deadline=None)
@given(text=st.text(CHARACTERS), limit=st.integers(16, 40))
def test_no_text_ever_loses_its_frame(tokenizer, text, limit):
    template = Template('{instruction}"{text}" means:{memory}{eos}', tokenizer, MEMORY)
    (row,) = template.rows([text], instruction="In: ", max_length=limit)
    assert len(row.ids) == len(row.segments) <= limit
    assert row.ids[0] == BOS and row.ids[-3:] == [*MEMORY, EOS]
    assert row.ids.count(BOS) == row.ids.count(EOS) == 1, "no special token is read out of a text"
    suffix = template.suffix_ids
    assert row.ids[-len(suffix) :] == suffix


def test_special_tokens_in_a_text_stay_text(tokenizer):
    (row,) = Template("{text}{memory}", tokenizer, MEMORY).rows(["a </s> <pad> <s> <mem0>"])
    assert row.ids.count(EOS) == 0 and row.ids.count(0) == 0 and row.ids.count(BOS) == 1
    assert tokenizer.decode([i for i in row.ids[1:] if i not in MEMORY]) == "a </s> <pad> <s> <mem0>"


def test_ids_are_taken_as_they_are(tokenizer):
    template = Template("{instruction}{text}{memory}", tokenizer, MEMORY)
    (row,) = template.rows([[20, 21, 22, 23]], max_length=5)
    assert row.ids == [BOS, 20, 21, *MEMORY]
    assert names(row.segments) == "PTTMM"


def test_an_empty_text_without_any_frame_still_is_a_row(tokenizer):
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, eos_token="</s>")
    template = Template("{text}", bare)
    assert template.bos_ids == [], "BOS is not put where the tokenizer knows none"
    assert template.rows([""])[0].ids == [EOS]


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [("half \ud800 of", ValueError, "text 8 holds a lone surrogate"), (None, TypeError, "text 8 is NoneType")],
)
def test_what_is_not_text(tokenizer, bad, error, words):
    with pytest.raises(error, match=words):
        Template("{text}", tokenizer).rows(["fine", bad], first=7)


def test_a_limit_that_leaves_no_room(tokenizer):
    with pytest.raises(ValueError, match="raise max_length or shorten the instruction"):
        Template("{instruction}{text}{memory}", tokenizer, MEMORY).rows(
            ["text"], instruction="A long instruction " * 5, max_length=20
        )


def test_a_chat_template_is_never_applied(tokenizer):
    chatty = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, bos_token="<s>", eos_token="</s>")
    chatty.chat_template = "{% for m in messages %}CHAT {{ m.content }}{% endfor %}"
    plain = Template("{text}", tokenizer).rows(["hello there"])
    assert Template("{text}", chatty).rows(["hello there"]) == plain


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("{instruction}", "{text} 0 times"),
        ("{text}{text}", "{text} 2 times"),
        ("{text}{oops}", "choose from"),
        ("{memory}{text}", "after {text}"),
        ("{text}{memory} words", "come last"),
        ("{text", "not a valid"),
        ("{echo}{text}", "give {echo} once, after {text}"),
        ("{text}{echo}{echo}", "give {echo} once, after {text}"),
    ],
)
def test_patterns_that_cannot_be(pattern, words):
    with pytest.raises(ValueError, match=words):
        split_pattern(pattern)


# ---- the text twice ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_length", [None, 40, 25])
def test_both_copies_are_the_same_tokens(tokenizer, max_length):
    """Cut alike, too; words and memory tokens stay."""
    template = Template("{instruction}say {text} again: {echo}!{memory}", tokenizer, MEMORY)
    for text in (*SENTENCES, "", "🦆", "x"):
        (row,) = template.rows([text], instruction="please, ", max_length=max_length)
        first, second = (
            [i for i, s in zip(row.ids, row.segments, strict=True) if s == segment]
            for segment in (Segment.TEXT, Segment.ECHO)
        )
        assert first == second
        (whole,) = template.rows([text], instruction="please, ")
        assert first == [i for i, s in zip(whole.ids, whole.segments, strict=True) if s == Segment.TEXT][: len(first)]
        assert max_length is None or len(row.ids) <= max_length
        assert len(whole.ids) - len(row.ids) == 2 * (whole.segments.count(Segment.TEXT) - len(first))
        assert row.ids[-len(MEMORY) :] == MEMORY
        assert row.segments.index(Segment.ECHO) > row.segments.index(Segment.TEXT) if first else True


def test_no_room_for_two_copies(tokenizer):
    with pytest.raises(ValueError, match="max_length=5 leaves .* for the text and its repetition"):
        Template("say {text} again: {echo}", tokenizer).rows(["a text"], max_length=5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A duck", "A duck."),
        ("A duck.", "A duck."),
        ("A duck?", "A duck."),
        ('A "duck"', "A 'duck'"),
        ("", ""),
        ("A duck!", "A duck!."),  # as the authors' code has it
    ],
)
def test_texts_as_sentences(tokenizer, text, expected):
    plain = Template('"{text}" means', tokenizer)
    assert Template('"{text}" means', tokenizer, preparation="sentence").rows([text]) == plain.rows([expected])


def test_an_instruction_may_stand_after_the_text(tokenizer):
    """Each row has its own; a long text loses its end, never the instruction."""
    template = Template('"{text}", {instruction}:{memory}', tokenizer, MEMORY)
    asked = ["sum it up", "say what follows"]
    rows = template.rows(["the fox", "the river " * 40], instruction=asked, max_length=30)
    for row, words in zip(rows, asked, strict=True):
        assert row.ids[-2:] == MEMORY and row.segments[-2:] == [Segment.MEMORY] * 2
        assert tokenizer.decode(row.ids[:-2]).endswith(f'", {words}:')
        assert len(row.ids) <= 30
    assert tokenizer.decode(rows[0].ids[1:-2]) == '"the fox", sum it up:'
    assert next(template.rows(["the fox"], instruction=words)[0].ids for words in asked) == rows[0].ids


def test_a_soft_prompt_comes_first(tokenizer):
    template = Template("{soft_prompt}{instruction}{text}{memory}", tokenizer, MEMORY, [302, 303])
    (row,) = template.rows(["the fox " * 20], instruction="Do: ", max_length=20)
    assert row.ids[:3] == [BOS, 302, 303] and row.ids[-2:] == MEMORY and len(row.ids) == 20
    assert names(row.segments).startswith("PPPP")
    plain = Template("{instruction}{text}{memory}", tokenizer, MEMORY)
    assert plain.rows(["the fox " * 20], instruction="Do: ", max_length=18)[0].ids == [BOS, *row.ids[3:]]


@pytest.mark.parametrize(
    ("pattern", "soft", "words"),
    [
        ("say {soft_prompt}{text}", [302], "at the very beginning"),
        ("{text}{soft_prompt}", [302], "at the very beginning"),
        ("{soft_prompt}{text}", [], "soft_prompt_tokens=0 do not go together"),
        ("{text}", [302], "soft_prompt_tokens=1 do not go together"),
        ("{text}{memory}", [], "do not go together"),
        ("{instruction}{text}{instruction}", [], "{instruction} once"),
        ("{text}{eos}{instruction}", [], "{instruction} once, before"),
    ],
)
def test_places_that_are_refused(pattern, soft, words, tokenizer):
    with pytest.raises(ValueError, match=words):
        Template(pattern, tokenizer, [], soft)
