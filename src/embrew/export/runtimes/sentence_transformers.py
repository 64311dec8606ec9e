"""Sentence-Transformers: a folder of stock modules, verified in a process without embrew."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file
from torch import nn

from embrew.export.comparing import require_same_ids, require_same_vectors
from embrew.export.compatibility import refuse_misreading, refuse_older_versions, write_for_other_readers
from embrew.export.fresh_process import run_fresh
from embrew.export.modules import pooling_modules
from embrew.export.parts import Parts
from embrew.export.runtimes.runtime import Runtime
from embrew.export.runtimes.tei import misread_by_tei
from embrew.export.runtimes.vllm import misread_by_vllm
from embrew.export.stock import check_stock, pools_every_token, pools_last_token
from embrew.storage.parts import check_tokenizer, write_tokenizer

OPEN_STOCK = """
import json, sys
sys.modules["bitsandbytes"] = None  # not needed; as it is imported, it may download code
import numpy as np
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
folder, out, device = sys.argv[1:4]
model = SentenceTransformer(folder, device=device, trust_remote_code=False, model_kwargs={"use_safetensors": True})
cases = json.load(open(folder + "/parity.json"))["cases"]
batch_size = max(1, min(8, 16384 // model.max_seq_length))
def vectors_of(case):
    named = {} if case["method"] != "encode" or case.get("default") else {"prompt_name": case["prompt_name"]}
    texts = [text["text"] for text in case["texts"]]
    return getattr(model, case["method"])(texts, batch_size=batch_size, show_progress_bar=False, **named)
vectors = [vectors_of(case) for case in cases]
save_file({str(i): np.ascontiguousarray(v) for i, v in enumerate(vectors)}, out)
tokenizer = model.tokenizer
ids = [[tokenizer((case["prompt"] or "") + t["text"], truncation=True, max_length=model.max_seq_length)["input_ids"]
        for t in case["texts"]] for case in cases]
json.dump(ids, open(out + ".ids", "w"))
"""


def write_stock(parts: Parts, out: Path, weights: str) -> None:
    """Write the folder that plain `SentenceTransformer(folder)` opens, in the encoder's own data type."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer

    encoder, tokenizer = parts.encoder, parts.tokenizer
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:  # on the same disk, and removed with it after a kill
        parts.model.save_pretrained(scratch)
        write_tokenizer(tokenizer, Path(scratch))
        own: dict[str, Any] = {"trust_remote_code": False}  # to be given for each of its three parts
        transformer = Transformer(
            scratch, unpad_inputs=_unpad(parts), model_kwargs=own, processor_kwargs={**own}, config_kwargs={**own}
        )
        modules: list[nn.Module] = [transformer, *pooling_modules(encoder, tokenizer, parts.ids)]
        if encoder.normalize:
            modules.append(Normalize())
        stock = SentenceTransformer(
            modules=modules,
            prompts=parts.prompts,
            default_prompt_name=parts.default_prompt_name,
            similarity_fn_name="cosine",
            device=str(encoder.device),
            trust_remote_code=False,
        )
        stock.save_pretrained(str(out), create_model_card=False)
    check_tokenizer(tokenizer, out)
    write_for_other_readers(out, max_length=encoder.max_seq_length)
    refuse_older_versions(out)
    refuse_misreading(out, vllm=misread_by_vllm(encoder), tei=misread_by_tei(encoder))


def _unpad(parts: Parts) -> bool | None:
    """Return False where texts must be padded to get their vectors; else None: Sentence-Transformers decides.

    With FlashAttention it concatenates the texts of a batch without padding, which is faster. `WordWeights` needs the
    attention mask that such a batch lacks, and a text without tokens has no row in it.
    """
    one_pooling = pools_every_token(parts.encoder) or pools_last_token(parts.encoder)
    return None if one_pooling and parts.empty_texts else False


def verify_stock(out: Path, parity: Mapping[str, Any], device: str) -> None:
    """Open the folder with Sentence-Transformers alone, in a separate process, and compare."""
    with tempfile.TemporaryDirectory(prefix="embrew-parity-") as scratch:
        target = Path(scratch) / "vectors.safetensors"
        done = run_fresh(OPEN_STOCK, str(out), str(target), device)
        if done.returncode:
            raise RuntimeError(f"plain Sentence-Transformers cannot open the exported folder:\n{done.stderr[-2000:]}")
        vectors, ids = load_file(target), json.loads(Path(f"{target}.ids").read_text())
    require_same_ids(out, parity, ids)
    require_same_vectors(
        "Sentence-Transformers with the exported folder", parity, [vectors[str(i)] for i in range(len(ids))]
    )


SENTENCE_TRANSFORMERS = Runtime(
    "sentence-transformers",
    check=check_stock,
    write=write_stock,
    verify=verify_stock,
    reads_stock=True,
)
