"""A tokenizer is reopened as it was written, whatever its class rebuilds when it is loaded."""

from __future__ import annotations

import pytest
from tokenizers import processors
from transformers import AutoTokenizer

from embrew.storage.parts import check_tokenizer, first_difference, write_tokenizer
from tests.tokenizer_kinds import CLASSES, gpt_neox


def following(token: str, number: int) -> processors.TemplateProcessing:
    """A post-processor that puts a token behind a text."""
    return processors.TemplateProcessing(single=f"$A {token}", pair="$A $B", special_tokens=[(token, number)])


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("own", [False, True])
def test_a_written_tokenizer_is_reopened_as_it_is(name, own, tmp_path):
    """Whatever its class would rebuild; with `own`, its post-processor has other tokens than the class puts there."""
    tokenizer = CLASSES[name]()
    if own:
        tokenizer.backend_tokenizer.post_processor = following("x", 9)
    write_tokenizer(tokenizer, tmp_path)
    check_tokenizer(tokenizer, tmp_path)
    reopened = AutoTokenizer.from_pretrained(tmp_path)
    called, expected = reopened("  the fox "), tokenizer("  the fox ")
    assert called == expected
    if own:
        assert called["input_ids"] == [*tokenizer("  the fox ", add_special_tokens=False)["input_ids"], 9]
    assert (reopened.padding_side, reopened.truncation_side) == (tokenizer.padding_side, tokenizer.truncation_side)
    assert len(CLASSES) == 9


def test_what_its_class_rebuilds_is_said_by_index_and_token(tmp_path, tokenizer):
    """GPT-NeoX's class drops what follows a text; the first index that differs is named, not two long lists."""
    mine = gpt_neox()
    mine.backend_tokenizer.post_processor = following("<|padding|>", 1)
    mine.save_pretrained(tmp_path)
    with pytest.raises(
        RuntimeError, match=r"reopened as GPTNeoXTokenizer and gives other tokens for 'A plain"
    ) as error:
        check_tokenizer(mine, tmp_path)
    count = len(mine("A plain sentence.").input_ids)
    assert f"index {count - 1} of {count}: expected 1 (<|padding|>), given nothing" in str(error.value)
    assert first_difference([0, 1], [0, 2, 3], tokenizer) == "index 1 of 2: expected 1 (<s>), given 2 (</s>) (3 tokens)"
