# %% [markdown]
# # Own pairs to a report
#
# Train an encoder on pairs of texts that belong together, evaluate it on held-out pairs, and compare it with the
# untrained model in one HTML page. The pairs are the first sentence and the rest of the description of each
# function of NetworkX, a library for graphs that is installed with PyTorch. Put your own in their place:
# questions and answers, titles and texts.

# %%
import inspect
import json
import subprocess
import sys
from pathlib import Path

import networkx


def embrew(command: str) -> None:
    """Run a command, as in a shell."""
    subprocess.run([sys.executable, "-m", "embrew", *command.split()], check=True)


found = [
    inspect.cleandoc(f.__doc__ or "").partition("\n\n") for _, f in inspect.getmembers(networkx, inspect.isfunction)
]
pairs = sorted({first: rest[:300] for first, _, rest in found if len(rest) > 50}.items())
test, train = pairs[::5], [pair for i, pair in enumerate(pairs) if i % 5]

# %% [markdown]
# Training data is one file. Test data is a folder: documents, queries, and which document is right for which
# query.

# %%
Path("held-out/qrels").mkdir(parents=True)
right = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in range(len(test)))]
files = {
    "pairs.jsonl": [json.dumps({"query": query, "positive": document}) for query, document in train],
    "held-out/queries.jsonl": [json.dumps({"_id": f"q{i}", "text": query}) for i, (query, _) in enumerate(test)],
    "held-out/corpus.jsonl": [json.dumps({"_id": f"d{i}", "text": document}) for i, (_, document) in enumerate(test)],
    "held-out/qrels/test.tsv": right,
    "mine.yaml": [
        "encoder:",
        "  {model: nano, template: '{text}', attention: bidirectional, pooling: {mode: mean},",
        "   max_length: {query: 32, document: 64}, lora: {r: 16, lora_alpha: 32, target_modules: all-linear}}",
        "stages:",
        "  - {name: trained, objective: {type: contrastive, positives: column}, data: {path: pairs.jsonl},",
        "     batch: {size: 16}, training: {max_steps: 40, learning_rate: 1.0e-3, warmup_steps: 4}}",
    ],
}
for name, lines in files.items():
    Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")

# %%
embrew("train mine.yaml --output out --quiet")
embrew("evaluate baselines/mean encoder.model=nano --data held-out --output results/untrained --quiet")
embrew("evaluate out/trained --data held-out --output results/trained --quiet")
embrew("compare results/untrained results/trained --output report.html")
