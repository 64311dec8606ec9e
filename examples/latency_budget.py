# %% [markdown]
# # Depth and dimension for a latency budget
#
# ESE (Espresso Sentence Embeddings) trains one encoder whose first layers and leading dimensions are encoders
# too. Here one is trained on pairs of texts, all combinations of layers and dimensions are evaluated on held-out
# pairs, and the best one within the budget is exported: half the time, a quarter of the bytes per vector.

# %%
import inspect
import json
import subprocess
import sys
from pathlib import Path

import networkx
from sentence_transformers import SentenceTransformer


def embrew(*arguments: str) -> None:
    """Run a command, as in a shell."""
    subprocess.run([sys.executable, "-m", "embrew", *arguments, "--quiet"], check=True)


texts = [inspect.cleandoc(f.__doc__ or "") for _, f in inspect.getmembers(networkx, inspect.isfunction)]
pairs = sorted({first: rest[:300] for first, _, rest in (text.partition("\n\n") for text in texts) if rest}.items())
train, dev = [pair for i, pair in enumerate(pairs) if i % 5], pairs[::5]
files = {
    "pairs.jsonl": [json.dumps({"query": query, "positive": document}) for query, document in train],
    "dev/queries.jsonl": [json.dumps({"_id": f"{i}", "text": query}) for i, (query, _) in enumerate(dev)],
    "dev/corpus.jsonl": [json.dumps({"_id": f"{i}", "text": document}) for i, (_, document) in enumerate(dev)],
    "dev/qrels/dev.tsv": ["query-id\tcorpus-id\tscore", *(f"{i}\t{i}\t1" for i in range(len(dev)))],
}
Path("dev/qrels").mkdir(parents=True)
for name, lines in files.items():
    Path(name).write_text("\n".join(lines), encoding="utf-8")

# %%
mine = ["data={path: pairs.jsonl}", "mix=null", "batch.size=16", "training.max_steps=40"]
short = "encoder.max_length={query: 32, document: 64}"
embrew("train", "ese/nano", *(f"stages.espresso.{setting}" for setting in mine), short, "--output", "out")
embrew("analyze", "surface", "out/espresso", "--data", "dev", "--dims", "32,64,128", "--output", "surface")

# %%
(model,) = json.loads(Path("surface/surface.json").read_text(encoding="utf-8"))["models"]
scores, times = model["scores"], model["milliseconds"]
within = [i for i, time in enumerate(times) if time <= times[-1] / 2]
cells = [(i, j) for i in within for j, dims in enumerate(model["dims"]) if dims <= 64]
i, j = max(cells, key=lambda cell: scores[cell[0]][cell[1]])
layers, dims = model["layers"][i], model["dims"][j]
print(f"{layers} layers, {dims} dimensions: nDCG@10 {scores[i][j]:.3f}, {times[i] / times[-1]:.2f} of the time")
print(f"{model['layers'][-1]} layers, {model['dims'][-1]} dimensions: nDCG@10 {scores[-1][-1]:.3f}")

# %% [markdown]
# The exported folder is a smaller model, which Sentence-Transformers opens without embrew.

# %%
embrew("export", "out/espresso", "small", "--layers", str(layers), "--dim", str(dims), "--max-length", "64")
vectors = SentenceTransformer("small").encode([query for query, _ in dev])
print(f"exported: {vectors.shape[0]} vectors of {vectors.shape[1]} dimensions")
