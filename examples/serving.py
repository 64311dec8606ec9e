# %% [markdown]
# # Serve an encoder, and call it by the OpenAI client
#
# `embrew serve` answers requests of OpenAI's API with the vectors of any encoder (`pip install "embrew[serve]"
# openai`). Usually it runs on another machine. Here the script starts it, on any free port, and ends it. `nano`
# is the small language model that ships with embrew, not trained as an encoder: give the folder of yours in its
# place.

# %%
import re
import subprocess
import sys

import numpy as np
from openai import OpenAI

from embrew import Encoder

command = [sys.executable, "-m", "embrew", "serve", "nano", "--pooling", "mean", "--port", "0"]
server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
lines = iter(server.stderr.readline, "")
address = next(found[1] for line in lines if (found := re.search(r"listening at (http://\S+)", line)))
next(line for line in lines if "is ready" in line)

# %% [markdown]
# The client needs the address only. What OpenAI's API does not have is given in `extra_body`: whether texts are
# queries or documents, a prompt or context, and the number of layers.

# %%
client = OpenAI(base_url=f"{address}/v1", api_key="none")
texts = ["The team won the final by two goals.", "The players won the last match.", "Snow closed the road."]
answer = client.embeddings.create(model="nano", input=texts, extra_body={"input_type": "document"})
vectors = np.array([item.embedding for item in answer.data])
print(f"{answer.usage.prompt_tokens} tokens, {vectors.shape[1]} dimensions")
print(np.round(vectors @ vectors.T, 3))

# %% [markdown]
# Vectors of the server are those of Python, to the last bits of float32.

# %%
expected = Encoder.from_pretrained("nano", pooling="mean").encode_document(texts)
print(f"largest difference: {np.abs(vectors - expected).max():.0e}")

# %% [markdown]
# Fewer dimensions are a request, not another model: the leading ones, normalised again.

# %%
small = client.embeddings.create(model="nano", input=texts, dimensions=64, extra_body={"input_type": "document"})
print(f"{len(small.data[0].embedding)} dimensions of length {np.linalg.norm(small.data[0].embedding):.3f}")
server.terminate()
print(f"the server ended with exit code {server.wait(60)}")
