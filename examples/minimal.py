# %% [markdown]
# # From pairs to a saved encoder, in Python
#
# Data, recipe, training, score, saved encoder. The pairs are the first sentence and the rest of the description of each
# function of NetworkX, a library for graphs that is installed with PyTorch. Every tenth pair is held out.

# %%
import inspect
import json
from pathlib import Path

import networkx

from embrew import Encoder, Recipe, train

texts = [inspect.cleandoc(f.__doc__) for _, f in inspect.getmembers(networkx, inspect.isfunction) if f.__doc__]
parts = [text.partition("\n\n") for text in texts]
pairs = sorted({query: document[:150] for query, _, document in parts if len(document) > 50}.items())
held_out = pairs[::10]
rows = [{"query": query, "positive": document} for query, document in pairs if (query, document) not in held_out]
Path("pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")

# %% [markdown]
# A recipe has an encoder and stages. A stage has an objective, data, and arguments of Hugging Face's Trainer.

# %%
encoder_settings = {"model": "nano", "template": "{text}", "attention": "bidirectional", "pooling": {"mode": "mean"}}
lora = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"}
stage = {
    "name": "pairs",
    "objective": {"type": "contrastive", "positives": "column"},
    "data": {"path": "pairs.jsonl"},
    "batch": {"size": 16},
    "training": {"max_steps": 20, "learning_rate": 1.0e-3, "warmup_steps": 4},
}
recipe = Recipe.from_values({"encoder": {**encoder_settings, "lora": lora}, "stages": [stage]})

# %% [markdown]
# `train` opens the model, trains each stage, and saves the encoder after it in a folder. It calls `accuracy` before the
# first stage and after each stage.


# %%
def accuracy(encoder: Encoder) -> dict[str, float]:
    queries, documents = ([pair[side] for pair in held_out] for side in (0, 1))
    similarities = encoder.similarity(encoder.encode_query(queries), encoder.encode_document(documents))
    return {"dev": sum(int(row.argmax()) == number for number, row in enumerate(similarities)) / len(held_out)}


train(recipe, "run", evaluate=accuracy)
encoder = Encoder.from_pretrained("run/pairs")
untrained = json.loads(Path("run/run.json").read_text(encoding="utf-8"))["scores"]["base"]["dev"]
print(f"queries whose document is the most similar: {untrained:.2f} untrained, {accuracy(encoder)['dev']:.2f} trained")
