"""What a user of a GGUF file must know, as a part of the card."""

from __future__ import annotations

import json

from embrew.encoder import Encoder
from embrew.export.parts import Parts
from embrew.export.runtimes.llama_cpp.pre_tokenizer import NFC, NO_FIRST_SPACE

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
    prompt = next((words for words in parts.prompts.values() if words), "")
    return OPEN.format(file=about["file"], limit=limit, prompt=prompt, duties="\n".join(duties))
