"""Encoders on tokenizers of every kind give the same tokens and vectors when saved and exported."""

import pytest

from embrew.encoder import Encoder
from tests.conftest import by_default
from tests.journeys import check_same, check_template, reopened_here, save_and_export, tiny_encoder, tiny_lm
from tests.tokenizer_kinds import KINDS


@pytest.mark.parametrize("kind", by_default(["byte-level", "metaspace"], KINDS))
def test_saved_and_exported(kind, tmp_path):
    assert len(KINDS) == 4
    family, tokenizer = KINDS[kind]
    encoder = tiny_encoder(tiny_lm(family, tokenizer(), tmp_path / "lm"))
    assert type(encoder.tokenizer) is type(tokenizer()), "as users' folders have it"
    check_template(encoder)
    folders = save_and_export(encoder, tmp_path)
    check_same(kind, encoder, folders[1], reopened_here({kind: folders}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_without_its_vocabulary_is_refused(kind, tmp_path):
    """Transformers opens it as a tokenizer of a few special tokens, and every text would be the same."""
    family, tokenizer = KINDS[kind]
    tiny_lm(family, tokenizer(), tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="its vocabulary was not found; the folder needs tokenizer.json"):
        Encoder.from_pretrained(tmp_path, device="cpu")
