"""Names of special tokens stay text for transformers and Sentence-Transformers, not for `tokenizer.json` alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from embrew.export.exporting import export_encoder
from tests.conftest import by_default
from tests.journeys import tiny_encoder, tiny_lm
from tests.tokenizer_kinds import KINDS


def check(family: str, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    encoder = tiny_encoder(tiny_lm(family, tokenizer, folder / "lm"))
    export_encoder(encoder, folder / "stock", verify="off")
    stock = SentenceTransformer(str(folder / "stock"), device="cpu")
    names = [*dict.fromkeys(tokenizer.all_special_tokens), "<|memory_0|>", "<|memory_2|>"]
    texts = ["plain", *(f"a{name}b {name}" for name in names)]
    ids = stock.tokenizer(texts)["input_ids"]
    assert AutoTokenizer.from_pretrained(folder / "stock")(texts)["input_ids"] == ids
    batch = stock.preprocess(texts)
    read = [row[mask.bool()].tolist() for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]
    assert read == ids
    special = set(stock.tokenizer.all_special_ids) | {stock.tokenizer.get_vocab()[f"<|memory_{i}|>"] for i in range(3)}
    added = [i for i in ids[0] if i in special]
    assert len(added) >= 3
    for text, row in zip(texts, ids, strict=True):
        assert [i for i in row if i in special] == added, f"{text!r} holds no token but what the template adds"
    alone = Tokenizer.from_file(str(folder / "stock" / "tokenizer.json"))
    assert alone.encode("plain").ids == ids[0]
    for name, text in zip(names, texts[1:], strict=True):
        assert alone.encode(text).ids.count(alone.token_to_id(name)) >= 2, f"{name} is parsed, as the docs say"
    page = (folder / "stock" / "README.md").read_text().replace("\n", " ")
    assert "stay text in transformers and Sentence-Transformers" in page


@pytest.mark.parametrize("kind", by_default(["metaspace"], KINDS))
def test_tiny_tokenizers(kind, tmp_path):
    family, tokenizer = KINDS[kind]
    check(family, tokenizer(), tmp_path)


def test_the_page_says_what_is_true():
    page = (Path(__file__).parents[2] / "docs" / "decisions" / "text-stays-text.md").read_text().replace("\n", " ")
    assert "which does recognise special names" not in page
    assert "`tokenizer.json` alone" in page
