# %% [markdown]
# # A domain from documents
#
# You have documents and no questions. One command splits them into passages, trains a language model on them in
# two stages (LBR: it learns the domain through a few memory tokens, then learns to represent texts by them),
# evaluates each step on documents that were held out, and exports the encoder. The documents here are
# descriptions of functions of NetworkX, one text file each. Real documents, a larger model and more steps go in
# their places.

# %%
import inspect
import json
import subprocess
import sys
from pathlib import Path

import networkx

functions = [f for _, f in inspect.getmembers(networkx, inspect.isfunction) if f.__doc__]
Path("documents").mkdir()
for function in functions[:300]:
    text = inspect.cleandoc(function.__doc__).partition("Parameters\n---")[0]
    Path(f"documents/{function.__name__}.txt").write_text(text, encoding="utf-8")

# %% [markdown]
# `KEY=VALUE` overrides settings of the recipe, here for a short run. The command chooses steps by the amount of
# data.

# %%
stages = "stages.learn.training.per_device_train_batch_size=8 stages.represent.batch.size=16"
short = f"--steps 10 stages.represent.training.max_steps=30 encoder.max_length.document=64 {stages}"
command = f"domain documents --model nano --output out --quiet --no-export {short}"
subprocess.run([sys.executable, "-m", "embrew", *command.split()], check=True)

# %% [markdown]
# `out/report.md`, which the command prints, has the scores of each step and what was held out. First sentences of
# held-out passages are the queries, because there are no questions. They rank the steps of one run; questions of
# users are harder.

# %%
scores = {}
for file in Path("out/results").glob("*/*.test.json"):
    scores[file.parent.name] = json.loads(file.read_text(encoding="utf-8"))["scores"]["test"][0]["ndcg_at_10"]
for step, score in sorted(scores.items(), key=lambda item: item[1]):
    print(f"nDCG@10 {score:.3f}  {step}")
