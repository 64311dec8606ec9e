"""The time of a forward pass as a line: `python benchmarks/pass_cost.py`.

CPU time of passes over 1 to 32 rows of 16 tokens, without gradients and with a backward pass through a LoRA, on models
of different shapes with random weights, one thread. The line through them is `pass + tokens × token`; what decides how
rows are grouped is `pass / token`, which `embrew.model.batching` predicts. Results: `results/pass-cost.*`.
"""

from __future__ import annotations

import time

import harness
import numpy as np
import torch
from harness import circumstances, origin, table
from peft import LoraConfig, get_peft_model
from transformers import AutoModel, BertConfig, LlamaConfig

from embrew.encoder import Encoder
from embrew.model.batching import by_shape

LENGTH, ROWS, REPEATS = 16, (1, 2, 4, 8, 16, 32), 5


def llama(width: int, inner: int, layers: int, heads: int) -> LlamaConfig:
    """The settings of a Llama."""
    return LlamaConfig(
        vocab_size=1000, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads
    )


SHAPES = {
    "nano": Encoder.from_pretrained("nano").backbone.inner.config,
    "MiniLM-L6": BertConfig(hidden_size=384, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=12),
    "Llama, 12 × 768": llama(768, 2048, 12, 12),
    "Llama, 2 × 2048": llama(2048, 5632, 2, 16),
}


def line(model: torch.nn.Module, *, training: bool) -> tuple[float, float]:
    """Return milliseconds of a pass, and of a token; relative errors have equal weight."""
    tokens, seconds = np.array(ROWS) * LENGTH, []
    for rows in ROWS:
        ids, found = torch.randint(0, 1000, (rows, LENGTH)), []
        for _ in range(REPEATS):
            began = time.process_time()
            with torch.set_grad_enabled(training):
                states = model(input_ids=ids, **({} if model.config.model_type == "bert" else {"use_cache": False}))[0]
                if training:
                    states.sum().backward()
            found.append(time.process_time() - began)
        seconds.append(min(found))
    weighted = np.stack([np.ones(len(tokens)), tokens], 1) / np.array(seconds)[:, None]
    once, each = np.linalg.lstsq(weighted, np.ones(len(tokens)), rcond=None)[0]
    return 1000 * float(once), 1000 * float(each)


def main() -> None:
    """Measure, and write the page."""
    torch.set_num_threads(1)
    torch.manual_seed(harness.SEED)
    rows = []
    for name, config in SHAPES.items():
        plain = AutoModel.from_config(config, attn_implementation="sdpa")
        parameters = sum(p.numel() for n, p in plain.named_parameters() if "embed" not in n)
        for training in (False, True):
            model = get_peft_model(plain, LoraConfig(r=16, target_modules="all-linear")) if training else plain
            once, each = line(model.train(training), training=training)
            row = {"model": name, "what": "step" if training else "pass", "parameters": parameters}
            row |= {"ms_per_pass": round(once, 3), "ms_per_token": round(each, 4), "tokens": round(once / each)}
            predicted = by_shape(parameters // config.num_hidden_layers, training=training)
            rows.append({**row, "predicted": predicted})
            print(rows[-1], flush=True)
    around = circumstances("python benchmarks/pass_cost.py")
    lines = [
        "# pass-cost",
        "",
        "CPU time of a forward pass, as a line in its tokens; see `benchmarks/pass_cost.py`.",
        "",
    ]
    lines += [*table(rows[0], [tuple(map(str, row.values())) for row in rows]), "", *origin(around)]
    harness.write("pass-cost", lines, {**around, "rows": rows})


if __name__ == "__main__":
    main()
