"""The server that a user writes in a few lines: FastAPI, and one `SentenceTransformer.encode` per request.

`python serving_peer.py MODEL PORT DTYPE HOW`; HOW is one of the three ways to write the route.
"""

from __future__ import annotations

import sys
import threading

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

MODEL, PORT, DTYPE, HOW = sys.argv[1:]
torch.set_num_threads(1)
app = FastAPI()
model = SentenceTransformer(
    MODEL,
    device="cpu",
    trust_remote_code=False,
    model_kwargs={"dtype": getattr(torch, DTYPE), "use_safetensors": True},
)
lock = threading.Lock()


class Texts(BaseModel):
    input: list[str]


def vectors(texts: Texts) -> dict[str, list[list[float]]]:
    return {"embeddings": model.encode(texts.input, show_progress_bar=False).tolist()}


@app.get("/health")
def health() -> dict[str, str]:
    return {"status": "ok"}


if HOW == "threads":

    @app.post("/embed")
    def in_a_thread(texts: Texts) -> dict[str, list[list[float]]]:
        return vectors(texts)

elif HOW == "lock":

    @app.post("/embed")
    def one_at_a_time(texts: Texts) -> dict[str, list[list[float]]]:
        with lock:
            return vectors(texts)

elif HOW == "async":

    @app.post("/embed")
    async def in_the_event_loop(texts: Texts) -> dict[str, list[list[float]]]:
        return vectors(texts)


uvicorn.run(app, host="127.0.0.1", port=int(PORT), log_level="warning")
