"""The files that a runtime without stock modules reads: tokenizer and configuration."""

from __future__ import annotations

from pathlib import Path

from embrew.export.parts import Parts
from embrew.storage.parts import check_tokenizer, write_tokenizer


def write_text_files(parts: Parts, out: Path) -> None:
    """Write tokenizer and `config.json` at the root of a folder, unless another runtime has written them."""
    if (out / "tokenizer.json").is_file():
        return
    write_tokenizer(parts.tokenizer, out)
    check_tokenizer(parts.tokenizer, out)
    parts.model.config.save_pretrained(out)
