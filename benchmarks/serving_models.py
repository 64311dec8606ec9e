"""What all servers are given: one model in the formats of each, and requests."""

from __future__ import annotations

import gzip
import json
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import harness
from harness import SEED
from models import save_llama

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder

TEXTS = 4  # per request
REQUESTS = 512  # that differ


@contextmanager
def models() -> Iterator[Path]:
    """12 random Llama layers of width 768: `saved` for ours, `stock` for the peers, `older` for transformers 4."""
    with tempfile.TemporaryDirectory(prefix="embrew-bench-") as scratch:
        place = Path(scratch)
        save_llama(place / "llama", width=768, inner=2048, layers=12, heads=12)
        encoder = Encoder.from_pretrained(
            place / "llama", pooling="mean", dtype="float32", device="cpu", max_length=512
        )
        encoder.save_pretrained(place / "saved", verify="off")
        export_encoder(encoder, place / "stock", runtimes=["sentence-transformers"], verify="off")
        write_older(place / "stock", place / "older")
        yield place


def write_older(stock: Path, place: Path) -> None:
    """Write an export once more with the names of transformers 4 and Sentence-Transformers 3."""
    (place / "1_Pooling").mkdir(parents=True)
    for name in ("model.safetensors", "tokenizer.json"):
        (place / name).hardlink_to(stock / name)
    config = json.loads((stock / "config.json").read_text())
    config = {name: value for name, value in config.items() if not name.startswith("_")}
    config |= {"rope_theta": config.pop("rope_parameters")["rope_theta"], "torch_dtype": config.pop("dtype")}
    tokenizer = json.loads((stock / "tokenizer_config.json").read_text()) | {
        "tokenizer_class": "PreTrainedTokenizerFast"
    }
    parts = ("Transformer", "Pooling", "Normalize")
    files = {
        "config.json": config,
        "tokenizer_config.json": {name: tokenizer[name] for name in tokenizer if name not in ("backend", "is_local")},
        "sentence_bert_config.json": {"max_seq_length": 512, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": config["hidden_size"], "pooling_mode_mean_tokens": True},
        "modules.json": [
            {
                "idx": i,
                "name": str(i),
                "path": f"{i}_{part}" if i else "",
                "type": f"sentence_transformers.models.{part}",
            }
            for i, part in enumerate(parts)
        ],
    }
    for name, content in files.items():
        (place / name).write_text(json.dumps(content))


def queries(count: int = REQUESTS) -> list[list[str]]:
    """Questions of customers, from banking77: four per request.

    Raises:
        Missing: EMBREW_DATA names no folder.
    """
    folder = os.environ.get("EMBREW_DATA")
    if not folder:
        raise harness.Missing("EMBREW_DATA names no folder of data")
    with gzip.open(Path(folder) / "banking77" / "test.jsonl.gz", "rt") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    random.Random(SEED).shuffle(texts)
    return [texts[i : i + TEXTS] for i in range(0, TEXTS * count, TEXTS)]
