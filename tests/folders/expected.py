"""What the source that makes the fixtures gives for them, and what is left of the files in the end."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.folders.inputs import TEXTS


class Expected:
    """What the source that made the folders gives for them."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.arrays: dict[str, np.ndarray] = {}

    def encoder(self, folder: str, *, options: dict[str, dict[str, Any]] | None = None) -> None:
        """Open an encoder's folder in this process; keep vectors and token ids."""
        from embrew.modeling.encoder import Encoder

        opened = Encoder.from_pretrained(folder, dtype="float32", device="cpu")  # which every machine computes in
        calls = {"query": {"prompt_name": "query"}, "document": {"prompt_name": "document"}, **(options or {})}
        for name, given in calls.items():
            self.arrays[f"{folder}:{name}"] = np.asarray(opened.encode(TEXTS, **given), dtype=np.float32)
        how = {"instruction": opened.prompts["query"], "max_length": opened.max_length["query"]}
        self.values[folder] = {
            "calls": calls,
            "ids": [[row.ids for row in template.rows(TEXTS, **how)] for template in opened.templates],
            "steps": opened.steps,
            "weights_hash": opened.weights_hash(),
        }

    def write(self, commit: str) -> None:
        """Write both files."""
        versions = {name: version(name) for name in ("torch", "transformers", "peft", "sentence-transformers")}
        self.values |= {"commit": commit, "versions": versions, "texts": TEXTS}
        Path("expected.json").write_text(json.dumps(self.values, ensure_ascii=False) + "\n")
        save_file(self.arrays, "expected.safetensors")


def check_paths() -> None:
    """List copies of files of `tiny/` and `nano` instead of keeping them; refuse any path of this machine."""
    from embrew.modeling.storage.loading import ASSETS

    nano = [path for path in ASSETS["nano"].iterdir() if path.name.startswith("tokenizer")]
    originals = {path.read_bytes(): f"nano/{path.name}" for path in nano}
    originals |= {path.read_bytes(): str(path) for path in Path("tiny").iterdir()}
    same = {}
    for path in sorted(Path().rglob("*")):
        if not path.is_file() or path.parts[0] == "tiny":
            continue
        content = path.read_bytes()
        if content in originals:
            same[str(path)] = originals[content]
            path.unlink()
        for word in (b"/work", b"/tmp", b"/home", b"/root", str(Path.cwd()).encode()):
            if word in content:
                raise SystemExit(f"{path} holds {word.decode()}")
    Path("same.json").write_text(json.dumps(same, indent=1) + "\n")
    total = sum(path.stat().st_size for path in Path().rglob("*") if path.is_file())
    sys.stdout.write(f"{total:,} bytes\n")
