# %% [markdown]
# # An encoder from documents
#
# You have a language model and documents, and no pairs. One command splits the documents into passages, holds some
# out, scores the model without training, trains it by contrastive learning and by one method (here LBR, which first
# learns the domain), and compares all of them. The documents here are descriptions of functions of NetworkX, one text
# file each.

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
# `--quick` shortens training to seconds, too short to judge a method by. Without it, each model is trained for 30
# minutes (`--minutes`). `--pairs FILE` adds questions of your own.

# %%
command = "adapt nano --docs documents --method lbr --quick --no-export --quiet --output out"
subprocess.run([sys.executable, "-m", "embrew", *command.split()], check=True)

# %% [markdown]
# `out/adapted.json` has what the command prints. Without pairs, first sentences of held-out passages are the
# queries: they compare models, but questions of users are harder.

# %%
adapted = json.loads(Path("out/adapted.json").read_text(encoding="utf-8"))
for row in sorted(adapted["models"], key=lambda row: row["test_ndcg_at_10"]):
    print(f"nDCG@10 {row['test_ndcg_at_10']:.3f}  {row['model']}")
print("best on dev:", adapted["best"])
