"""What a server reads from a stock folder, and the vectors that follow from it, computed with transformers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModel

from embrew.encoder import Encoder
from embrew.export.comparing import prompt_of
from embrew.export.stock import pools_every_token, pools_last_token

logger = logging.getLogger(__name__)
ServedPooling = Literal["cls", "last", "mean"]
ONE_TOKEN = (
    "train one memory token at the end of the template (template: '{instruction}{text}{memory}', memory_tokens: 1, "
    "pooling: {mode: last, over: memory}) or last-token pooling"
)


class Unreadable(ValueError):
    """A server would not open the folder, or would read another encoder from it."""


@dataclass(frozen=True)
class Reading:
    """An encoder as a server understands a folder.

    Attributes:
        pooling: which states of all tokens become the vector.
        causal: the direction of attention; None: that of the model's family.
        max_length: limit in tokens of a text, with its prompt and added tokens.
        normalize: whether vectors have unit length.
        projections: folders of the `Dense` modules that are applied to a pooled state, in order.
    """

    pooling: ServedPooling
    causal: bool | None
    max_length: int
    normalize: bool
    projections: tuple[str, ...]


def pooling_refused(encoder: Encoder) -> str | None:
    """Return why a server that pools over every token cannot pool as the encoder does; None: it can."""
    pooling, number = encoder.pooling, len(encoder.template.memory_ids)
    if pools_last_token(encoder):
        return None
    if not pools_every_token(encoder):
        over = "its text only" if pooling.over == "text" else f"its {number} memory tokens"
        if pooling.over == "memory" and number == 1:
            over = "a memory token that is not the last token"
        return f"it pools over every token of a row, and this encoder over {over}; {ONE_TOKEN}"
    if pooling.mode == "weighted_mean":
        return "it has no weighted mean; train pooling: last or mean"
    return None


def window_exceeded(encoder: Encoder) -> str | None:
    """Return what is said of texts that are longer than a sliding window of the model; None: no text is."""
    config = encoder.backbone.inner.config
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if not window or (kinds is not None and "sliding_attention" not in kinds) or encoder.max_seq_length <= window:
        return None
    return (
        f"texts of up to {encoder.max_seq_length} tokens exceed the model's sliding window of {window}; export with "
        f"--max-length {window} or less"
    )


def read_json(path: Path) -> Any:
    """Return the content of a JSON file that a server requires."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise Unreadable(f"{path.parent.name}/{path.name} is missing") from error


def verify_reading(
    server: str,
    out: Path,
    parity: Mapping[str, Any],
    reading: Reading,
    tokenize: Callable[[str], list[int]],
    *,
    device: str,
    prompts: Mapping[str, str] | None = None,
    holds_names: Callable[[str], bool] = lambda text: False,
) -> None:
    """Compute the reference vectors as a server would that reads the folder so, and compare.

    Args:
        server: name of the runtime, for messages.
        out: the folder.
        parity: content of its `parity.json`.
        reading: what the server reads.
        tokenize: ids of a text with its prompt, as the server makes them.
        device: where to compute.
        prompts: those that the server reads from the folder; None: clients put them before texts.
        holds_names: whether a text holds names that the server documents to read otherwise; such texts are left out.

    Raises:
        RuntimeError: token ids or vectors differ.
    """
    what = f"{server}, simulated from its loader's source"
    model = AutoModel.from_pretrained(out, trust_remote_code=False).eval().to(device)
    if reading.causal is not None:
        model.config.is_causal = reading.causal
    matrices = [
        load_file(out / folder / "model.safetensors")["linear.weight"].float() for folder in reading.projections
    ]
    for case in parity["cases"]:
        texts = [text for text in case["texts"] if not holds_names(text["text"])]
        name = case["prompt_name"]
        prompt = case["prompt"] if prompts is None or name is None else prompts.get(name, "")
        for text in texts:
            ids = tokenize((prompt or "") + text["text"])
            if ids != text["ids"]:
                raise RuntimeError(
                    f"{what}: it gives other token ids for {text['text'][:40]!r} ({prompt_of(case)}): "
                    f"{len(ids)} instead of {len(text['ids'])}"
                )
            vector = _vector(model, ids, reading, matrices)
            difference = float(np.abs(vector - np.asarray(text["vector"], dtype=np.float32)).max())
            if not difference <= parity["tolerance"]:
                raise RuntimeError(
                    f"{what}: it gives other vectors ({prompt_of(case)}, {text['text'][:40]!r}): largest "
                    f"difference {difference:.2e}, allowed {parity['tolerance']:.0e}; it reads {reading}"
                )
        logger.info("%s: %s, the same token ids and vectors for %d texts", what, prompt_of(case), len(texts))


@torch.no_grad()
def _vector(model: Any, ids: Sequence[int], reading: Reading, matrices: Sequence[Tensor]) -> np.ndarray:
    """Return the vector of one text: states of the last layer, pooled in float32, projected, normalised."""
    if not ids:
        raise RuntimeError("a text without tokens has no vector")
    states = model(input_ids=torch.tensor([list(ids)], device=model.device)).last_hidden_state[0].float().cpu()
    pooled = {"cls": states[0], "last": states[-1], "mean": states.mean(dim=0)}[reading.pooling]
    for matrix in matrices:
        pooled = matrix @ pooled
    return np.asarray(torch.nn.functional.normalize(pooled, dim=0) if reading.normalize else pooled)
