"""The proof of a stock folder: what the encoder itself gives, and that a process without embrew gives the same."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from embrew.export.contexts import Baked
from embrew.modeling.encoder import Encoder
from embrew.modeling.proof import TEXTS

logger = logging.getLogger(__name__)
OPEN_STOCK = """
import json, sys
import numpy as np
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
folder, out, device = sys.argv[1:4]
model = SentenceTransformer(folder, device=device)
cases = json.load(open(folder + "/parity.json"))["cases"]
options = {"batch_size": 8, "show_progress_bar": False}
vectors = [model.encode([t["text"] for t in c["texts"]], prompt_name=c["prompt_name"], **options) for c in cases]
save_file({str(i): np.ascontiguousarray(v) for i, v in enumerate(vectors)}, out)
tokenizer = model.tokenizer
ids = [[tokenizer((case["prompt"] or "") + t["text"], truncation=True, max_length=model.max_seq_length)["input_ids"]
        for t in case["texts"]] for case in cases]
json.dump(ids, open(out + ".ids", "w"))
"""


def parity_cases(encoder: Encoder, prompts: dict[str, str], ids: dict[int, int]) -> list[dict[str, Any]]:
    """Reference texts, token ids and vectors for every prompt, as the encoder itself makes them."""
    cases = []
    for name in [*encoder.prompts, None]:
        name = name or encoder.default_prompt_name
        instruction = "" if name is None else encoder.prompts[name]
        rows = encoder.template.rows(TEXTS, instruction=instruction, max_length=encoder.max_seq_length)
        vectors = encoder.encode(list(TEXTS), prompt=instruction, batch_size=8, show_progress_bar=False)
        stock_name = ("text" if "text" in prompts else None) if name is None else name
        texts = reference_texts([[ids.get(i, i) for i in row.ids] for row in rows], vectors)
        cases.append({"prompt_name": stock_name, "prompt": prompts.get(stock_name or "", ""), "texts": texts})
    return cases


def context_cases(encoder: Encoder, baked: dict[str, Baked], ids: dict[int, int]) -> list[dict[str, Any]]:
    """The same for every context; a stock folder counts it among the tokens of a text, so the text has less room."""
    begin, cases = len(encoder.template.first_ids), []
    for name, context in baked.items():
        instruction = encoder.instruction(name)
        rows = encoder.template.rows(TEXTS, instruction=instruction, max_length=context.room)
        own = [[ids.get(i, i) for i in row.ids] for row in rows]
        whole = [[*row[:begin], *context.ids, *row[begin:]] for row in own]
        vectors = encoder.encode(list(TEXTS), name, max_length=context.room, batch_size=8, show_progress_bar=False)
        texts = reference_texts(whole, vectors)
        cases.append({"prompt_name": name, "prompt": context.prompt, "texts": texts})
    return cases


def reference_texts(ids: list[list[int]], vectors: Any) -> list[dict[str, Any]]:
    """The proof's texts with their token ids and vectors, for JSON."""
    return [
        {"text": text, "ids": own, "vector": [round(float(x), 7) for x in vector]}
        for text, own, vector in zip(TEXTS, ids, np.asarray(vectors), strict=True)
    ]


def prove(out: Path, parity: dict[str, Any], device: str) -> None:
    """Open the folder with Sentence-Transformers alone, in a process of its own, and compare."""
    with tempfile.TemporaryDirectory(prefix="embrew-parity-") as scratch:
        target = Path(scratch) / "vectors.safetensors"
        command = [sys.executable, "-c", OPEN_STOCK, str(out), str(target), device]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"plain Sentence-Transformers cannot open the exported folder:\n{done.stderr[-2000:]}")
        vectors, ids = load_file(target), json.loads(Path(f"{target}.ids").read_text())
    for i, case in enumerate(parity["cases"]):
        for text, got in zip(case["texts"], ids[i], strict=True):
            if text["ids"] != got:
                raise RuntimeError(
                    f"the exported tokenizer gives other ids for {text['text'][:40]!r} (prompt {case['prompt_name']}): "
                    f"{got[:12]}… instead of {text['ids'][:12]}…"
                )
        ours = np.array([text["vector"] for text in case["texts"]], dtype=np.float32)
        difference = float(np.abs(ours - vectors[str(i)]).max())
        logger.info("export: prompt %s, largest difference %.1e", case["prompt_name"], difference)
        if not difference <= parity["tolerance"]:
            raise RuntimeError(
                f"the exported folder gives other vectors (prompt {case['prompt_name']}): largest difference "
                f"{difference:.2e}, allowed {parity['tolerance']:.0e}"
            )
