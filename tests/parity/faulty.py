"""A runtime that has one fault: the stock folder in transformers, with nothing of embrew.

It reads the folder's files itself: tokenizer.json by `tokenizers`, the model by transformers, the pooling from the
modules' JSON. A fault changes one of its steps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModel

from embrew.settings.encoder import Pooling
from tests.parity.servers import Unknown

PROMPTS = {"query": "find the answer: "}
FORMS: dict[str, dict[str, Any]] = {
    "last": {
        "template": "{instruction}{text}{eos}",
        "attention": "causal",
        "pooling": Pooling("last"),
        "memory_tokens": 0,
    },
    "mean": {
        "template": "{instruction}{text}",
        "attention": "bidirectional",
        "pooling": Pooling("mean"),
        "memory_tokens": 0,
    },
    "one-memory": {"attention": "causal", "pooling": Pooling("last", "memory"), "memory_tokens": 1},
    "memory": {"attention": "bidirectional", "pooling": Pooling("mean", "memory"), "memory_tokens": 3},
}
LIMIT = 128
THREE_PROMPTS = {**PROMPTS, "document": "passage: ", "title": "a title: "}


class FaultyRuntime:
    """The model of a stock folder, run text by text.

    Args:
        folder: an export for Sentence-Transformers.
        fault: name of the fault; "" for none.
    """

    def __init__(self, folder: Path, fault: str = "") -> None:
        self.fault = fault
        self.known: dict[str, np.ndarray] = {}
        causal = {"causal": True, "bidirectional": False}.get(fault)
        self.model = AutoModel.from_pretrained(folder).eval()
        if causal is not None:
            self.model.config.is_causal = causal
            for module in self.model.modules():
                if hasattr(module, "is_causal"):
                    module.is_causal = causal
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = fault != "special tokens are read"
        self.limit = json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"]
        modules = json.loads((folder / "modules.json").read_text())
        config = next(m for m in modules if m["type"].endswith("Pooling"))
        self.pooling = json.loads((folder / config["path"] / "config.json").read_text())["pooling_mode"]
        self.normalises = any(m["type"].endswith("Normalize") for m in modules)
        self.only_memory = any(m["type"].endswith("WordWeights") for m in modules)
        self.prompts = json.loads((folder / "config_sentence_transformers.json").read_text())["prompts"]
        empty = self.tokenizer.encode("").ids
        text = self.tokenizer.encode("x").ids
        first = next((i for i, token in enumerate(empty) if text[i] != token), len(empty))
        self.first, self.end = empty[:first], empty[first:]
        self.memory = {self.tokenizer.token_to_id(f"<|memory_{i}|>") for i in range(8)} - {None}

    def ids(self, text: str) -> list[int]:
        """Token ids with all that is added."""
        if self.fault == "prompt missing":
            for words in filter(None, self.prompts.values()):
                text = text.removeprefix(words)
        if self.fault == "prompt added":
            text = self.prompts["query"] + text
        if self.fault == "prompt doubled":
            for words in filter(None, self.prompts.values()):
                text = words + text if text.startswith(words) else text
        body = self.tokenizer.encode(text, add_special_tokens=False).ids
        first, end, limit = list(self.first), list(self.end), self.limit
        match self.fault:
            case "bos missing":
                first = first[1:]
            case "bos doubled":
                first = first[:1] + first
            case "eos missing":
                end = end[:-1]
            case "end missing":
                end = []
            case "no special tokens":
                first, end = [], []
            case "truncated at 24":
                limit = 24
            case "truncated at 64":
                limit = 64
            case "truncated at 100":
                limit = 100
            case "not truncated":
                limit = 10_000
            case "truncated naively":
                return [*first, *body, *end][:limit]
        return [*first, *body[: limit - len(first) - len(end)], *end]

    def vector(self, text: str, others: Sequence[str] = ()) -> np.ndarray:
        """The vector of one text; `others` are those of the same request, which two faults read."""
        if self.fault in ("padding is read", "second of two"):
            return self._vector(text, others)
        if text not in self.known:
            self.known[text] = self._vector(text, ())
        return self.known[text]

    def _vector(self, text: str, others: Sequence[str]) -> np.ndarray:
        ids = self.ids(text)
        mask = torch.ones(1, len(ids), dtype=torch.long)
        if self.fault == "padding is read" and others:
            longest = max(len(self.ids(other)) for other in others)
            ids = ids + [0] * (longest - len(ids))
            mask = torch.ones(1, len(ids), dtype=torch.long)
        if self.fault == "second of two" and len(others) == 2 and text == others[1] and text != others[0]:
            ids = self.ids(others[0])[:3] + ids
            mask = torch.ones(1, len(ids), dtype=torch.long)
        with torch.inference_mode():
            states = self.model(input_ids=torch.tensor([ids]), attention_mask=mask).last_hidden_state[0].float()
        vector = self.pooled(states, ids).numpy().astype(np.float32)
        if self.normalises and "not normalised" not in self.fault:
            vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
        if self.fault == "half the dimensions":
            vector = vector[: len(vector) // 2] / np.linalg.norm(vector[: len(vector) // 2])
        return vector

    def pooled(self, states: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
        """One state for a text."""
        if self.fault.startswith("mean"):
            return states.mean(0)
        if self.fault.startswith("cls"):
            return states[0]
        if self.fault.startswith("last") or self.pooling == "lasttoken":
            return states[-1]
        if self.only_memory:
            chosen = [i for i, token in enumerate(ids) if token in self.memory]
            return states[chosen].mean(0) if chosen else states.sum(0) * 0
        assert self.pooling == "mean"
        return states.mean(0)

    def __call__(self, texts: Sequence[str], prompt_name: str | None = None) -> Any:
        """The vectors of a request."""
        if prompt_name is not None:
            if prompt_name not in self.prompts:
                raise Unknown(prompt_name)
            words = "" if self.fault == "prompt by name ignored" else self.prompts[prompt_name]
            texts = [words + text for text in texts]
        vectors = np.stack([self.vector(text, texts) for text in texts])
        if self.fault == "longest first":
            order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
            return vectors[order]
        return vectors
