# %% [markdown]
# # Contexts from a handful of demonstrations
#
# EPIC trains an encoder to read demonstrations: examples of the task, as vectors before the query. After
# training, a handful of examples become a named context of the encoder. The pairs here are first paragraph and
# rest of the descriptions of NetworkX's functions, a library for graphs.

# %%
import inspect
import json
import subprocess
import sys
from pathlib import Path

import networkx


def embrew(*arguments: str) -> None:
    """Run a command, as in a shell."""
    subprocess.run([sys.executable, "-m", "embrew", *arguments, "--quiet"], check=True)


texts = [inspect.cleandoc(f.__doc__ or "") for _, f in inspect.getmembers(networkx, inspect.isfunction)]
pairs = sorted(
    {first: rest[:300] for first, _, rest in (text.partition("\n\n") for text in texts) if len(rest) > 50}.items()
)
train, test = [pair for i, pair in enumerate(pairs) if i % 5], pairs[::5]
files = {
    "pairs.jsonl": [{"query": query, "positive": document} for query, document in train],
    "demos.jsonl": [{"query": query, "response": document} for query, document in train[::120]],
    "test/queries.jsonl": [{"_id": f"{i}", "text": query} for i, (query, _) in enumerate(test)],
    "test/corpus.jsonl": [{"_id": f"{i}", "text": document} for i, (_, document) in enumerate(test)],
}
Path("test/qrels").mkdir(parents=True)
for name, rows in files.items():
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
right = ["query-id\tcorpus-id\tscore", *(f"{i}\t{i}\t1" for i in range(len(test)))]
Path("test/qrels/test.tsv").write_text("\n".join(right), encoding="utf-8")

# %%
find = "Find the description: "
mine = [f"data={{path: pairs.jsonl, instruction: '{find}'}}", "mix=null", "batch.size=16", "training.max_steps=80"]
short = [f"encoder.prompts={{query: '{find}'}}", "encoder.max_length={query: 32, document: 64}"]
embrew("train", "epic/nano", *(f"stages.supervised.{setting}" for setting in mine), *short, "--output", "out")
embrew("context", "add", "out/supervised", "graphs", "--instruction", find, "--demos", "demos.jsonl")

# %% [markdown]
# `encode(texts, prompt_name="graphs")` and `embrew serve` take the name, like that of any prompt. Evaluate with
# and without it before you use it: here, where the task is the one of the training, it changes little.

# %%
for name, context in (("without", []), ("with", ["--context", "graphs"])):
    embrew("evaluate", "out/supervised", "--data", "test", *context, "--output", name)
    (file,) = Path(name).glob("*.test.json")
    score = json.loads(file.read_text(encoding="utf-8"))["scores"]["test"][0]["ndcg_at_10"]
    print(f"nDCG@10 {name} context: {score:.3f}")
