"""An exported folder that Sentence-Transformers trains further, saves and opens again is the model that was trained."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.settings.encoder import Pooling
from tests.conftest import by_default
from tests.hard_texts import HARD_TEXTS

CASES = {
    "mean over memory": {"memory_tokens": 3},
    "causal mean over text": {"memory_tokens": 0, "pooling": Pooling("mean", "text"), "attention": "causal"},
    "leading dimensions of a mean over memory": {"memory_tokens": 3},
    "leading dimensions of a last token": {"memory_tokens": 1, "pooling": Pooling("last", "memory")},
}
LINE = re.compile(r"^## Training it further$.*?^```python\n(.+?)\n```$", re.MULTILINE | re.DOTALL)


def exported(make_encoder: Callable[..., Encoder], case: str, folder: Path) -> tuple[SentenceTransformer, list[str]]:
    """The opened folder, and the line of its card, if it has one."""
    options = {"truncate_dim": 8} if case.startswith("leading dimensions") else {}
    encoder = make_encoder(lora={}, max_length=48, **CASES[case])
    export_encoder(encoder, folder, verify="off", **options)
    return SentenceTransformer(str(folder), device="cpu"), LINE.findall((folder / "README.md").read_text())


def train(model: SentenceTransformer, *, fused: bool = False) -> None:
    """Three steps on all that is trainable."""
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05, fused=fused)
    model.train()
    for _ in range(3):
        vectors = [model(model.preprocess(texts))["sentence_embedding"] for texts in (["a", "b c"], ["d e", "f"])]
        torch.nn.functional.cross_entropy(5 * vectors[0] @ vectors[1].T, torch.arange(2)).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def difference(model: SentenceTransformer, folder: Path) -> float:
    """Between the model and what is opened again after a save, over texts of all kinds."""
    model.save_pretrained(str(folder), create_model_card=False)
    texts = [text for text in HARD_TEXTS if text]
    reopened = SentenceTransformer(str(folder), device="cpu")
    assert reopened.tokenizer(texts)["input_ids"] == model.tokenizer(texts)["input_ids"]
    return float(np.abs(reopened.encode(texts) - model.encode(texts)).max())


@pytest.mark.parametrize("case", by_default(["mean over memory"], CASES))
def test_the_line_of_the_card_keeps_the_trained_model(case, make_encoder, tmp_path):
    model, lines = exported(make_encoder, case, tmp_path / "stock")
    (line,) = lines
    assert "\n" not in line
    before = model.encode(list(HARD_TEXTS))
    exec(line, {"model": model})
    others = {name: value.clone() for name, value in model.state_dict().items() if not name.startswith("0.")}
    train(model, fused=True)
    after = model.state_dict()
    assert others and all(torch.equal(value, after[name]) for name, value in others.items())
    assert np.abs(model.encode(list(HARD_TEXTS)) - before).max() > 0.01, "the language model is trained"
    assert difference(model, tmp_path / "trained") < 1e-6


def test_a_folder_that_may_be_trained_whole_says_nothing(make_encoder, tmp_path):
    encoder = make_encoder(memory_tokens=1, pooling=Pooling("last", "memory"))
    export_encoder(encoder, tmp_path / "stock", verify="off")
    assert "requires_grad_" not in (tmp_path / "stock" / "README.md").read_text()


@pytest.mark.slow
def test_with_the_trainer_of_sentence_transformers(make_encoder, tmp_path):
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    found = {}
    for name in ("with the line", "without"):
        model, (line,) = exported(make_encoder, "mean over memory", tmp_path / name)
        if name == "with the line":
            exec(line, {"model": model})
        rows = {"anchor": [f"question {i}" for i in range(16)], "positive": [f"answer {i}" for i in range(16)]}
        options = {"max_steps": 5, "learning_rate": 1e-2, "report_to": "none", "save_strategy": "no", "use_cpu": True}
        arguments = SentenceTransformerTrainingArguments(
            str(tmp_path / "run"), prompts={"anchor": "find: "}, per_device_train_batch_size=8, **options
        )
        loss = MultipleNegativesRankingLoss(model)
        SentenceTransformerTrainer(model, args=arguments, train_dataset=Dataset.from_dict(rows), loss=loss).train()
        found[name] = difference(model.eval(), tmp_path / f"{name} trained")
    assert found["with the line"] < 1e-6 and found["without"] > 1e-4
