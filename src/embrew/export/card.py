"""What a user of an exported folder must know, as parts of its model card."""

from __future__ import annotations

from collections.abc import Sequence

from embrew.runtimes.reference import Int8Result
from embrew.runtimes.sentence_transformers import required_versions

VERSIONS = """Needs transformers {transformers} and sentence-transformers {sentence-transformers}, or newer.
transformers 4 would ignore a part of this folder (`is_causal`, `rope_parameters`, the tokenizer's class) and give other
vectors. It refuses the folder: "Specified `attn_implementation="none: this folder needs transformers>={transformers}"`
is not supported".

Names of special tokens in a text, such as `</s>`, stay text in transformers and Sentence-Transformers. Software that
reads `tokenizer.json` alone (Rust tokenizers, Text Embeddings Inference) takes them for the tokens themselves: remove
them from texts before they get there."""
EMPTY = """An empty text has no tokens here, since the template adds none: Sentence-Transformers gives it a vector of
zeros, or an error where a batch holds nothing else. The encoder that was exported reads one end-of-sequence token in
its place. Leave empty texts out."""
TRAINING = """## Training it further

Run this line before you make a trainer or an optimizer for the opened `model`:

```python
{line}
```

{reasons} A trainer puts no prompt before texts unless its argument `prompts` says so."""
REASONS = {
    "WordWeights": (
        "`model[{i}]` says which tokens the mean is over. Sentence-Transformers opens it trainable, saves the values "
        "that training gave it, and opens it again with those of its configuration: the saved model would not be the "
        "trained one."
    ),
    "Dense": (
        "`model[{i}]` keeps the leading dimensions and is opened trainable: trained, it is a projection of all of them."
    ),
}


def notes(modules: Sequence[str], *, empty_texts: bool) -> list[str]:
    """Return parts of the card: the versions needed, what to know of texts, how to train the folder further.

    Args:
        modules: class names of the folder's modules, in order; some must not be trained.
        empty_texts: whether an empty text has tokens.
    """
    versions = [VERSIONS.format_map(required_versions())] if modules else []
    return [*versions, *([] if empty_texts else [EMPTY]), *_training(modules)]


def _training(modules: Sequence[str]) -> list[str]:
    fixed = {i: name for i, name in enumerate(modules) if name in REASONS}
    if not fixed:
        return []
    names = [f"model[{i}]" for i in fixed]
    line = f"{names[0]}.requires_grad_(False)"
    if len(names) > 1:
        line = f"for module in ({', '.join(names)}): module.requires_grad_(False)"
    reasons = " ".join(REASONS[name].format(i=i) for i, name in fixed.items())
    return [TRAINING.format(line=line, reasons=reasons)]


def int8_card(measured: Int8Result) -> str:
    """Return what the card says of weights in int8.

    Args:
        measured: `int8` of `parity.json`.
    """
    lines = [
        "## Weights in int8",
        f"Weights are int8, and activations {measured['activations']}. On {measured['texts']} texts, the cosine to the "
        f"encoder's vectors is {measured['mean_cosine']:.4f} on average and {measured['min_cosine']:.4f} at least.",
    ]
    if measured["dev"]:
        rows = [
            f"| {name} | {score['encoder']:.4f} | {score['int8']:.4f} |"
            for name, score in sorted(measured["dev"].items())
        ]
        lines.append("\n".join(["| score | encoder | int8 |", "|---|---:|---:|", *rows]))
    return "\n\n".join(lines)
