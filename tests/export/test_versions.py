"""An exported folder says which versions it needs, and names them to an older transformers that opens it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel

from embrew.export.exporting import export_encoder

ROOT = Path(__file__).parents[2]
GUARD = "_attn_implementation_internal"  # what transformers 4 takes for the attention kernel


def lowest_versions() -> dict[str, str]:
    """As pyproject.toml has them."""
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    found = (re.fullmatch(r"(transformers|sentence-transformers)>=([\d.]+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def test_the_versions_are_those_of_the_package():
    from embrew.runtimes.sentence_transformers import required_versions

    assert required_versions() == lowest_versions() and len(lowest_versions()) == 2


def test_card_and_configuration_name_them(make_encoder, tmp_path):
    """Transformers 4.57 refuses the name as an attention kernel and repeats it; this version does not read it."""
    encoder = make_encoder(lora={})
    export_encoder(encoder, tmp_path / "stock", verify="off")
    needed = lowest_versions()
    card = (tmp_path / "stock" / "README.md").read_text().replace("\n", " ")
    assert (
        f"Needs transformers {needed['transformers']} and sentence-transformers {needed['sentence-transformers']}"
        in card
    )
    written = json.loads((tmp_path / "stock" / "config.json").read_text())
    assert written.get(GUARD) == f"none: this folder needs transformers>={needed['transformers']}"
    assert f'"Specified `attn_implementation="{written[GUARD]}"` is not supported"' in card
    config, model = AutoConfig.from_pretrained(tmp_path / "stock"), AutoModel.from_pretrained(tmp_path / "stock")
    assert config._attn_implementation != written[GUARD] and model.config._attn_implementation == "sdpa"
    without = {key: value for key, value in written.items() if key != GUARD}
    (tmp_path / "stock" / "config.json").write_text(json.dumps(without))
    ids = torch.tensor([[1, 2, 3, 4]])
    plain = AutoModel.from_pretrained(tmp_path / "stock")
    assert torch.equal(model(ids).last_hidden_state, plain(ids).last_hidden_state)
