"""llama.cpp: a GGUF file, run by llama-cpp-python."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from embrew.encoder import Encoder
from embrew.export.fresh_process import NOT_HERE
from embrew.export.parts import Parts
from embrew.export.runtime import Runtime
from embrew.export.runtimes.gguf_model import ARCHITECTURES, encoded, refusal, tensors, write_architecture
from embrew.export.runtimes.gguf_tokenizer import NFC, NO_FIRST_SPACE, kind_of, vocabulary_of, write_vocabulary
from embrew.export.stock import pools_every_token, pools_last_token
from embrew.storage.parts import check_tokenizer, write_tokenizer

PYTHON = "EMBREW_LLAMA_CPP"
"""Environment variable: the Python interpreter that has llama-cpp-python; by default, this one."""
LOWEST = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.999, "int8": 0.99}
"""Lowest cosine allowed between llama.cpp's vector and the encoder's, by type of the weights."""
EXACT = 1e-3  # references with a smaller tolerance were computed in float32
OPENING = f"""
import unicodedata
import llama_cpp
version = llama_cpp.__version__
about, limit = parity["llama.cpp"], parity["max_length"]
sizes = dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), limit)
sizes |= dict.fromkeys(("n_threads", "n_threads_batch"), options["threads"])
model = llama_cpp.Llama(model_path=folder + "/" + about["file"], embedding=True, verbose=False, **sizes)
def prepared(text):
    if "{NFC}" in about["text_preparation"]:
        text = unicodedata.normalize("NFC", text)
    if "{NO_FIRST_SPACE}" in about["text_preparation"] and text.startswith((" ", "\u2581")):
        text = text[1:]
    return text
def embedded(text):
    ids = model.tokenize(text.encode())
    return ids, model.embed(text, normalize=True, truncate=False) if 0 < len(ids) <= limit else None
def encode(case, texts):
    return [embedded(prepared((case["prompt"] or "") + text)) for text in texts]
"""
TYPES = {"fp16": "F16", "fp32": "F32", "bf16": "BF16", "int8": "Q8_0"}
"""llama.cpp's name of each type of weights. The default is the first: half the size of fp32, cosines above 0.999."""
PROMPTS = "embrew.prompts"  # keys of our own: prompt names, and what each puts before a text
INSTEAD = (
    "train one memory token, or last-token pooling, with attention: causal; llama.cpp takes the last token's state, "
    "the first's, or the mean of all"
)
POOLING = {"mean": 1, "cls": 2, "last": 3}  # gguf.PoolingType
OPEN = """`{file}` is for llama.cpp:

```python
from llama_cpp import Llama

model = Llama("{file}", embedding=True, n_ctx={limit}, n_batch={limit}, n_ubatch={limit})
vector = model.embed({prompt!r} + text, normalize=True, truncate=False)
```

```bash
llama-server -m {file} --embeddings -c {limit} -b {limit} -ub {limit}
llama-embedding -m {file} -c {limit} -b {limit} -ub {limit} -p "PROMPT TEXT"
```

The client does what the file cannot:

{duties}

Names of special tokens in a text stay text: the file lists them as unused, under other names."""
PROMPT = "- Put a prompt before the text (`embrew.prompts` in the file, and below)."
LIMIT = (
    "- Shorten texts of more than {limit} tokens, prompt and special tokens included: llama.cpp refuses them, reads "
    "them whole where its limits are larger, or, with `truncate=True`, cuts off the last token, too."
)
PREPARATION = {
    NFC: "- Normalise prompt and text to NFC (`unicodedata.normalize`): llama.cpp does not, and this tokenizer does.",
    NO_FIRST_SPACE: "- Remove one space from the beginning of a prompt with its text, if there is one.",
}
LENGTH = "- Do not normalise vectors (`normalize=False`; `--embd-normalize -1`): this encoder does not."


def refused_by_llama_cpp(encoder: Encoder) -> str | None:
    """Return why llama.cpp cannot give an encoder's vectors; raise if the gguf package is not installed."""
    if importlib.util.find_spec("gguf") is None:
        raise ValueError('a GGUF file is written with the gguf package; install it: pip install "embrew[gguf]"')
    return (
        _template(encoder)
        or _vectors(encoder)
        or refusal(encoder.backbone.inner.config, encoder.max_seq_length)
        or _tokenizer(encoder)
    )


def _template(encoder: Encoder) -> str | None:
    template = encoder.template
    if template.after:
        return (
            f"template={template.pattern!r} has words after the text, and llama.cpp adds one token there; train with a "
            "template that ends with {text}, {text}{eos} or {text}{memory}"
        )
    if len(template.memory_ids) > 1:
        return f"it has {len(template.memory_ids)} memory tokens, and llama.cpp adds one token after a text; {INSTEAD}"
    if template.soft_prompt_ids:
        return "its soft prompt comes before the text, where llama.cpp adds one token, BOS; train without soft_prompt"
    for ids, place in ((template.first_ids, "before"), (template.suffix_ids, "after")):
        if len(ids) > 1:
            names = " ".join(str(encoder.tokenizer.convert_ids_to_tokens(i)) for i in ids)
            return f"{len(ids)} tokens come {place} every text ({names}), and llama.cpp adds one; {INSTEAD}"
    return None


def _vectors(encoder: Encoder) -> str | None:
    pooling, width = encoder.pooling, encoder.backbone.hidden_size
    if encoder.head is not None:
        pooling = encoder.pooling
        if pooling.dense:
            return f"its vectors pass through dense layers after they are pooled; {INSTEAD}"
        layer = "latent attention" if pooling.projection is None else "a projection"
        return f"its states pass through {layer} before they are pooled; {INSTEAD}"
    if encoder.attention.is_causal is None:
        return f"attention={encoder.attention.mode} needs a mask; llama.cpp is causal or bidirectional: {INSTEAD}"
    if encoder.get_embedding_dimension() < width:
        return (
            f"it keeps {encoder.get_embedding_dimension()} of {width} dimensions, and llama.cpp returns all; export "
            "without --dim, then keep the first dimensions of each vector and normalise it"
        )
    if pools_last_token(encoder):
        return None
    if pooling.mode not in POOLING or not pools_every_token(encoder):
        return f"it pools {pooling.mode} over {pooling.over}; {INSTEAD}"
    return None


def _tokenizer(encoder: Encoder) -> str | None:
    try:
        kind = kind_of(encoder.tokenizer)
    except ValueError as error:
        return str(error)
    if encoder.contexts and kind.model == "llama":
        return "its contexts are tokens in the middle of a prompt, after which llama.cpp's SentencePiece puts a space"
    return None


def write_gguf(parts: Parts, out: Path, weights: str) -> None:
    """Write `NAME-TYPE.gguf` beside the tokenizer's files, and what it needs of clients into `parity.json`."""
    import gguf

    encoder, kind = parts.encoder, kind_of(parts.tokenizer)
    config, name = parts.model.config, encoder.base.name.rpartition("/")[2]
    path = out / f"{name}-{TYPES[weights]}.gguf"
    rows = parts.model.get_input_embeddings().weight.shape[0]
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config.model_type])
    writer.add_name(name)
    file_type = "ALL_F32" if weights == "fp32" else f"MOSTLY_{TYPES[weights]}"
    writer.add_file_type(int(gguf.LlamaFileType[file_type]))
    writer.add_quantization_version(2)
    write_architecture(writer, config, limit=encoder.max_seq_length)
    writer.add_causal_attention(bool(encoder.attention.is_causal))
    pooling = "last" if pools_last_token(encoder) else encoder.pooling.mode
    writer.add_pooling_type(gguf.PoolingType(POOLING[pooling]))
    added = (encoder.template.first_ids, encoder.template.suffix_ids)
    first, last = (parts.ids.get(ids[0], ids[0]) if ids else None for ids in added)
    write_vocabulary(writer, vocabulary_of(parts.tokenizer, kind, rows), kind, first=first, last=last)
    if parts.prompts:
        writer.add_array(f"{PROMPTS}.names", list(parts.prompts))
        writer.add_array(f"{PROMPTS}.texts", list(parts.prompts.values()))
    for tensor, value in tensors(parts.model):
        data, dtype = encoded(tensor, value, TYPES[weights])
        writer.add_tensor(tensor, data, raw_dtype=gguf.GGMLQuantizationType[dtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if not (out / "tokenizer.json").exists():
        write_tokenizer(parts.tokenizer, out)
        check_tokenizer(parts.tokenizer, out)
    parts.parity["llama.cpp"] = {"file": path.name, "text_preparation": list(kind.preparation)}


def caution_on_gguf(encoder: Encoder) -> str | None:
    """Return what is said of added tokens that are no special ones, as Qwen2.5's `<|fim_prefix|>`.

    llama.cpp takes some of them for special tokens, by their names: it then finds them in texts only where it looks for
    special tokens, as llama-server does and `embed` of llama-cpp-python does not.
    """
    added = json.loads(encoder.tokenizer.backend_tokenizer.to_str())["added_tokens"]
    names = [token["content"] for token in added if not token["special"]]
    if not names:
        return None
    shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
    return (
        f"This tokenizer has added tokens that are found in texts ({shown}). llama.cpp takes some of them for special "
        "tokens, by their names, and embed of llama-cpp-python then reads such a name as words, which is another "
        "vector; llama-server looks for special tokens in texts. Keep these names out of texts"
    )


def note_on_gguf(parts: Parts) -> str:
    """Return how a GGUF file is opened, and what its clients have to do; the file is written already."""
    about, limit = parts.parity["llama.cpp"], parts.encoder.max_seq_length
    duties = [
        *([PROMPT] if any(parts.prompts.values()) else []),
        *(PREPARATION[step] for step in about["text_preparation"]),
        LIMIT.format(limit=limit),
        *([] if parts.encoder.normalize else [LENGTH]),
    ]
    return OPEN.format(file=about["file"], limit=limit, prompt=parts.first_prompt(), duties="\n".join(duties))


def interpreter() -> str | None:
    """Return the Python interpreter that has llama-cpp-python; None: there is none."""
    return _with_llama_cpp(os.environ.get(PYTHON) or sys.executable)


@lru_cache
def _with_llama_cpp(python: str) -> str | None:
    search = "import importlib.util as u, sys; sys.exit(u.find_spec('llama_cpp') is None)"
    try:
        return None if subprocess.run([python, "-c", NOT_HERE + search], check=False).returncode else python
    except OSError as error:
        raise ValueError(f"{PYTHON}={python}: no such interpreter ({error})") from error


def _least_cosine(parity: Mapping[str, Any], weights: str) -> float:
    return min(LOWEST[weights], 0.999) if parity["tolerance"] >= EXACT else LOWEST[weights]


LLAMA_CPP = Runtime(
    "llama.cpp",
    "llama.cpp",
    refusal=refused_by_llama_cpp,
    opening=OPENING,
    write=write_gguf,
    python=interpreter,
    weights=tuple(TYPES),
    least_cosine=_least_cosine,
    caution=caution_on_gguf,
    note=note_on_gguf,
)
