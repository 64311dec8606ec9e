"""llama.cpp: a GGUF file, run by llama-cpp-python."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from shlex import quote
from typing import TypedDict, cast

import torch

from embrew.encoder import Encoder
from embrew.runtimes.gguf_model import (
    NFC,
    NO_FIRST_SPACE,
    architecture,
    encoded,
    kind_of,
    refusal,
    tensors,
    vocabulary_of,
    write_architecture,
    write_vocabulary,
)
from embrew.runtimes.portable import PortableEncoder
from embrew.runtimes.reference import Parity
from embrew.runtimes.runtime import INSTALLED_ONLY, OpenedRuntime, Prompt, Refused, Runtime
from embrew.runtimes.stock_folder import pools_every_token, pools_last_token

PYTHON = "EMBREW_LLAMA_CPP"
"""Environment variable: the Python interpreter that has llama-cpp-python; by default, this one."""
LOWEST = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.999, "int8": 0.99}
"""Lowest cosine allowed between llama.cpp's vector and the encoder's, by type of the weights."""
EXACT = 1e-3  # references with a smaller tolerance were computed in float32
SCRIPT = f"""
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
EMBED = """
import json, sys
import llama_cpp
path, threads = sys.argv[1], int(sys.argv[2])
about = llama_cpp.Llama(model_path=path, vocab_only=True, verbose=False).metadata
limit = int(about[about["general.architecture"] + ".context_length"])
sizes = dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), max(limit, 2048))
options = {"n_threads": threads, "n_threads_batch": threads, "n_seq_max": 32, "kv_unified": True}
model = llama_cpp.Llama(model_path=path, embedding=True, verbose=False, **sizes, **options)
print(json.dumps({"version": llama_cpp.__version__}), flush=True)
for line in sys.stdin:
    texts = json.loads(line)
    ids = [model.tokenize(text.encode()) for text in texts]
    longest = max(map(len, ids))
    if longest > limit:
        answer = {"refused": f"a text has {longest} tokens, and the file allows {limit}"}
    else:
        answer = {"ids": ids, "vectors": model.embed(texts, normalize=True, truncate=False)}
    print(json.dumps(answer), flush=True)
"""
"""Python code that answers one line of texts after another, as JSON."""
TYPES = {"fp16": "F16", "fp32": "F32", "bf16": "BF16", "int8": "Q8_0"}
"""llama.cpp's name of each type of weights. The default is the first: half the size of fp32, cosines above 0.999."""
PROMPTS = "embrew.prompts"  # keys of our own: prompt names, and what each puts before a text
INSTEAD = (
    "train one memory token, or last-token pooling, with attention: causal; llama.cpp takes the last token's state, "
    "the first's, or the mean of all"
)
POOLING = {"mean": 1, "cls": 2, "last": 3}  # gguf.PoolingType
USAGE = """`{file}` is for llama.cpp:

```python
from llama_cpp import Llama

model = Llama("{file}", embedding=True, n_ctx={limit}, n_batch={limit}, n_ubatch={limit})
vector = model.embed({prompt!r} + text, normalize=True, truncate=False)
```

```bash
llama-server -m {file} --embeddings -c {limit} -b {limit} -ub {limit}
llama-embedding -m {file} -c {limit} -b {limit} -ub {limit} -p "PROMPT TEXT"
```

Ollama takes it from `Modelfile`, and was not run when this was written; `check_passport.py` says whether it gives these
vectors:

```bash
ollama create NAME -f Modelfile
```

The client does what the file cannot:

{duties}

Names of special tokens in a text stay text: the file lists them as unused, under other names."""
MODELFILE = """# Ollama: ollama create NAME -f Modelfile
# Ollama applies no TEMPLATE or SYSTEM to embeddings: put a prompt before the text in the request.
FROM ./{file}
PARAMETER num_ctx {limit}
"""
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


NOT_RUN = ("gemma3_text",)  # types of models


def refused_by_llama_cpp(encoder: Encoder) -> str | None:
    """Return why llama.cpp cannot give an encoder's vectors; raise if the gguf package is not installed."""
    if importlib.util.find_spec("gguf") is None:
        raise ValueError('a GGUF file is written with the gguf package; install it: pip install "embrew[gguf]"')
    return (
        _template(encoder)
        or _vectors(encoder)
        or refusal(encoder.backbone.inner.config, encoder.max_seq_length)
        or _tokenizer(encoder)
        or _not_run(encoder)
    )


def _not_run(encoder: Encoder) -> str | None:
    """Return why a family whose files were never compared here needs llama-cpp-python, which compares this one."""
    if encoder.backbone.inner.config.model_type not in NOT_RUN or interpreter() is not None:
        return None
    return (
        "files of this family were not yet compared with llama.cpp, and this one would not be without "
        f"llama-cpp-python: install it, or name an interpreter that has it in {PYTHON}"
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
    for ids, side in ((template.first_ids, "before"), (template.suffix_ids, "after")):
        if len(ids) > 1:
            names = " ".join(str(encoder.tokenizer.convert_ids_to_tokens(i)) for i in ids)
            return f"{len(ids)} tokens come {side} every text ({names}), and llama.cpp adds one; {INSTEAD}"
    return None


def _vectors(encoder: Encoder) -> str | None:
    pooling, width = encoder.pooling, encoder.backbone.hidden_size
    if encoder.center is not None:
        return f"a mean is subtracted from its vectors (pooling.center), which a GGUF file cannot hold; {INSTEAD}"
    if encoder.head is not None:
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


def write_gguf(portable: PortableEncoder, out: Path, weights: str) -> None:
    """Write `NAME-TYPE.gguf` beside the tokenizer's files, and what it needs of clients into `parity.json`."""
    import gguf

    encoder, kind = portable.encoder, kind_of(portable.tokenizer)
    config, name = portable.model.config, encoder.base.name.rpartition("/")[2]
    path = out / f"{name}-{TYPES[weights]}.gguf"
    rows = cast(torch.nn.Embedding, portable.model.get_input_embeddings()).weight.shape[0]
    writer = gguf.GGUFWriter(path, architecture(config, causal=bool(encoder.attention.is_causal)))
    writer.add_name(name)
    file_type = "ALL_F32" if weights == "fp32" else f"MOSTLY_{TYPES[weights]}"
    writer.add_file_type(int(gguf.LlamaFileType[file_type]))
    writer.add_quantization_version(2)
    write_architecture(writer, config, limit=encoder.max_seq_length)
    writer.add_causal_attention(bool(encoder.attention.is_causal))
    pooling = "last" if pools_last_token(encoder) else encoder.pooling.mode
    writer.add_pooling_type(gguf.PoolingType(POOLING[pooling]))
    added = (encoder.template.first_ids, encoder.template.suffix_ids)
    first, last = (portable.ids.get(ids[0], ids[0]) if ids else None for ids in added)
    write_vocabulary(writer, vocabulary_of(portable.tokenizer, kind, rows), kind, first=first, last=last)
    if portable.prompts:
        writer.add_array(f"{PROMPTS}.names", list(portable.prompts))
        writer.add_array(f"{PROMPTS}.texts", list(portable.prompts.values()))
    for tensor, value in tensors(portable.model):
        data, dtype = encoded(tensor, value, TYPES[weights])
        writer.add_tensor(tensor, data, raw_dtype=gguf.GGMLQuantizationType[dtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    modelfile = MODELFILE.format(file=path.name, limit=encoder.max_seq_length)
    (out / "Modelfile").write_text(modelfile, encoding="utf-8")
    portable.write_text_files(out, config=False)
    portable.parity["llama.cpp"] = {"file": path.name, "text_preparation": list(kind.preparation)}


def caution_on_gguf(encoder: Encoder) -> str | None:
    """Return what is said of added tokens that are no special ones, as Qwen2.5's `<|fim_prefix|>`.

    llama.cpp takes some of them for special tokens, by their names: it then finds them in texts only where it looks for
    special tokens, as llama-server does and `embed` of llama-cpp-python does not.
    """
    added = json.loads(encoder.tokenizer.backend_tokenizer.to_str())["added_tokens"]
    names = [token["content"] for token in added if not token["special"]]
    if not names:
        return None
    listed = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
    return (
        f"This tokenizer has added tokens that are found in texts ({listed}). llama.cpp takes some of them for special "
        "tokens, by their names, and embed of llama-cpp-python then reads such a name as words, which is another "
        "vector; llama-server looks for special tokens in texts. Keep these names out of texts"
    )


def usage_of_gguf(portable: PortableEncoder) -> str:
    """Return how a GGUF file is opened, and what its clients have to do; the file is written already."""
    facts, limit = portable.parity["llama.cpp"], portable.encoder.max_seq_length
    duties = [
        *([PROMPT] if any(portable.prompts.values()) else []),
        *(PREPARATION[step] for step in facts["text_preparation"]),
        LIMIT.format(limit=limit),
        *([] if portable.encoder.normalize else [LENGTH]),
    ]
    return portable.usage(USAGE, file=str(facts["file"]), duties="\n".join(duties))


def interpreter() -> str | None:
    """Return the Python interpreter that has llama-cpp-python; None: there is none."""
    return _with_llama_cpp(os.environ.get(PYTHON) or sys.executable)


@lru_cache
def _with_llama_cpp(python: str) -> str | None:
    search = "import importlib.util as u, sys; sys.exit(u.find_spec('llama_cpp') is None)"
    try:
        return None if subprocess.run([python, "-c", INSTALLED_ONLY + search], check=False).returncode else python
    except OSError as error:
        raise ValueError(f"{PYTHON}={python}: no such interpreter ({error})") from error


class Answer(TypedDict, total=False):
    """A line of the process of a GGUF file: its `version`; for texts ids and vectors, or why it refuses them."""

    version: str
    ids: list[list[int]]
    vectors: list[list[float]]
    refused: str


class OpenedGGUF(OpenedRuntime):
    """A GGUF file in llama-cpp-python, in a process that stays open; vectors are normalised, as its server does.

    Args:
        path: the file.

    Raises:
        ValueError: llama-cpp-python is not at hand, or cannot open the file.
    """

    reads = ("llama.cpp",)

    def __init__(self, path: Path) -> None:
        python = interpreter()
        if python is None:
            raise ValueError(
                f"{path} needs llama-cpp-python: install it, or set {PYTHON} to the Python interpreter of an "
                "environment that has it"
            )
        self.path = path
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (it lives as long as the process)
        command, pipe = [python, "-c", INSTALLED_ONLY + EMBED, str(path), str(torch.get_num_threads())], subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.errors, text=True)
        self.name = f"{path} (llama-cpp-python {self._read()['version']})"

    def embed(self, texts: Sequence[str], prompt: Prompt | None) -> object:
        """Return vectors of texts, which llama.cpp computes together where they fit into a batch; it has no prompts."""
        return self._answer(texts)["vectors"]

    def token_ids(self, text: str) -> list[int] | None:
        """Return ids by llama.cpp's tokenizer."""
        return [int(i) for i in self._answer([text])["ids"][0]]

    def _answer(self, texts: Sequence[str]) -> Answer:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended, and says why
            self.process.stdin.write(json.dumps(list(texts)) + "\n")
            self.process.stdin.flush()
        answer = self._read()
        if "refused" in answer:
            raise Refused(f"{self.path.name}: {answer['refused']}")
        return answer

    def _read(self) -> Answer:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            lines = self.errors.read().strip().splitlines()
            raise ValueError(f"llama.cpp cannot run {self.path}: {' '.join(lines[-2:]) or 'it gave no message'}")
        answer: Answer = json.loads(line)
        return answer


def _least_cosine(parity: Parity, weights: str) -> float:
    return min(LOWEST[weights], 0.999) if parity["tolerance"] >= EXACT else LOWEST[weights]


def _opening(folder: Path, parity: Parity) -> str:
    file, limit = quote(str(folder / str(parity["llama.cpp"]["file"]))), parity["max_length"]
    return f"llama-server -m {file} --embeddings -c {limit} -b {limit} -ub {limit}"


LLAMA_CPP = Runtime(
    "llama.cpp",
    "llama.cpp",
    refusal=refused_by_llama_cpp,
    script=SCRIPT,
    opening=_opening,
    write=write_gguf,
    python=interpreter,
    weights=tuple(TYPES),
    least_cosine=_least_cosine,
    caution=caution_on_gguf,
    usage=usage_of_gguf,
    files=("*.gguf",),
    open=OpenedGGUF,
)
