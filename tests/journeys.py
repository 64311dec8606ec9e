"""What a tokenizer goes through with an encoder: template, truncation, saving, export; reopened in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.settings.encoder import Pooling
from embrew.text.tokens import Segment
from tests.hard_texts import HARD_TEXTS
from tests.models import CONFIGS, spread, stir

MAX_LENGTH = 48
Folders = dict[str, tuple[Path, Path]]  # the encoder's and its export's, by name
Reopened = tuple[dict[str, Any], dict[str, Any]]  # token ids and vectors, by name and folder
OPEN_BOTH = """
import json, sys
import numpy as np
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
journeys, texts, out = json.load(open(sys.argv[1])), json.load(open(sys.argv[2])), sys.argv[3]
ids, vectors, options = {}, {}, {"batch_size": 8, "show_progress_bar": False}
for name, (saved, stock) in journeys.items():
    model = SentenceTransformer(stock, device="cpu")
    tokenizer = model.tokenizer
    called = tokenizer(texts, truncation=True, max_length=model.max_seq_length)
    ids[name + ".stock"] = called["input_ids"]
    vectors[name + ".stock"] = model.encode_document(texts, **options)
    assert sorted(called) == sorted(tokenizer.model_input_names)
assert "embrew" not in sys.modules
from embrew.encoder import Encoder
for name, (saved, stock) in journeys.items():
    encoder = Encoder.from_pretrained(saved, device="cpu")
    ids[name + ".saved"] = [row.ids for row in encoder.template.rows(texts, max_length=encoder.max_seq_length)]
    vectors[name + ".saved"] = encoder.encode_document(texts, **options)
save_file({name: np.ascontiguousarray(v) for name, v in vectors.items()}, out)
json.dump(ids, open(out + ".ids", "w"))
"""


def tiny_lm(family: str, tokenizer: PreTrainedTokenizerBase, folder: Path, **sizes: Any) -> Path:
    """A folder with a random model of a family and a tokenizer of its own."""
    torch.manual_seed(0)
    rows = -(-(len(tokenizer) + 8) // 64) * 64  # more than there are tokens, as public models have it
    config = type(CONFIGS[family])(**{**CONFIGS[family].to_dict(), "vocab_size": rows, **sizes})
    spread(AutoModelForCausalLM.from_config(config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_encoder(folder: Path, **settings: Any) -> Encoder:
    """LLM2Comp's encoder on a folder: three memory tokens, bidirectional, a LoRA with noise in it."""
    encoder = Encoder.from_pretrained(
        folder,
        device="cpu",
        memory_tokens=3,
        **{
            "template": "{instruction}{text}{memory}",
            "attention": "bidirectional",
            "pooling": Pooling("mean", "memory"),
            "max_length": MAX_LENGTH,
            **settings,
        },
    )
    encoder.backbone.add_lora({"r": 4, "lora_alpha": 8})
    stir(encoder.backbone)
    return encoder.eval()


def check_template(encoder: Encoder) -> None:
    """Rows are what transformers itself makes of each text, truncated at the end, and the memory tokens behind."""
    bos = encoder.template.bos_ids
    called = encoder.tokenizer(list(HARD_TEXTS), add_special_tokens=False, split_special_tokens=True)["input_ids"]
    truncated = 0
    for limit in (MAX_LENGTH, 9):
        rows = encoder.template.rows(HARD_TEXTS, max_length=limit)
        for row, ids in zip(rows, called, strict=True):
            room = limit - len(bos) - len(encoder.backbone.memory_ids)
            truncated += len(ids) > room
            assert row.ids == [*bos, *ids[:room], *encoder.backbone.memory_ids]
            assert row.segments.count(Segment.MEMORY) == 3
            assert row.segments.count(Segment.TEXT) == min(len(ids), room)
    assert truncated > 10


def save_and_export(encoder: Encoder, folder: Path) -> tuple[Path, Path]:
    """The encoder's folder, and that of its export."""
    encoder.save_pretrained(folder / "saved", verify="off")
    export_encoder(encoder, folder / "stock", verify="off")
    return folder / "saved", folder / "stock"


def reopened_afresh(
    folders: Folders, scratch: Path, *, run: Callable[..., subprocess.CompletedProcess] = subprocess.run
) -> Reopened:
    """Token ids and vectors of the 40 texts by what a fresh process opens: Sentence-Transformers alone, then embrew."""
    out = scratch / "vectors.safetensors"
    (scratch / "texts.json").write_text(json.dumps(HARD_TEXTS))
    (scratch / "folders.json").write_text(json.dumps({name: [str(p) for p in pair] for name, pair in folders.items()}))
    command = [sys.executable, "-c", OPEN_BOTH, *(str(scratch / f) for f in ("folders.json", "texts.json")), str(out)]
    done = run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(Path(f"{out}.ids").read_text()), load_file(out)


def reopened_here(folders: Folders) -> Reopened:
    """The same in this process."""
    ids, vectors, texts = {}, {}, list(HARD_TEXTS)
    for name, (saved, stock) in folders.items():
        model, encoder = SentenceTransformer(str(stock), device="cpu"), Encoder.from_pretrained(saved, device="cpu")
        ids[f"{name}.stock"] = model.tokenizer(texts, truncation=True, max_length=model.max_seq_length)["input_ids"]
        ids[f"{name}.saved"] = [row.ids for row in encoder.template.rows(texts, max_length=encoder.max_seq_length)]
        for part, opened in (("stock", model), ("saved", encoder)):
            vectors[f"{name}.{part}"] = opened.encode_document(texts, batch_size=8, show_progress_bar=False)
    return ids, vectors


def check_same(name: str, encoder: Encoder, stock: Path, reopened: Reopened) -> None:
    """Token ids and vectors of 40 texts, saved and exported, are the encoder's."""
    ids, vectors = reopened
    expected = encoder.encode_document(list(HARD_TEXTS), batch_size=8, show_progress_bar=False)
    rows = [row.ids for row in encoder.template.rows(HARD_TEXTS, max_length=encoder.max_seq_length)]
    added = {t["content"]: t["id"] for t in json.loads((stock / "tokenizer.json").read_text())["added_tokens"]}
    own = {added[f"<|memory_{i}|>"]: id for i, id in enumerate(encoder.backbone.memory_ids)}
    exported = [[own.get(i, i) for i in row] for row in ids[f"{name}.stock"]]
    assert ids[f"{name}.saved"] == rows, f"{name}: token ids of the saved encoder"
    assert exported == rows, f"{name}: token ids of the export"
    for part in ("stock", "saved"):
        difference = float(np.abs(vectors[f"{name}.{part}"] - expected).max())
        assert difference < 1e-5, f"{name}: vectors of {part} differ by {difference:.1e}"
