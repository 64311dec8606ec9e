"""A server on loopback that answers as OpenAI's API, Text Embeddings Inference and Ollama do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Embed = Callable[[Sequence[str], str | None], Any]
Answer = tuple[int, dict[str, str], str]
ADDRESSES = {"openai": "/v1", "tei": "/embed", "ollama": "/api/embed"}


class Unknown(KeyError):
    """No prompt of this name."""


@contextmanager
def serving(
    embed: Embed,
    *,
    tokenize: Callable[[str], list[int]] | None = None,
    intercept: Callable[[str, dict[str, Any], Any], Answer | None] | None = None,
    only: Sequence[str] = ("openai", "tei", "ollama"),
) -> Iterator[str]:
    """Serve vectors that `embed` gives of texts and a prompt's name; yield the address.

    Args:
        embed: gives the vectors.
        tokenize: gives token ids; None: the server does not tell them.
        intercept: from path, headers and body to a status, headers and text, in place of an answer.
        only: the kinds of server that it answers as.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            known = {
                "/info": ("tei", {"model_id": "tiny"}),
                "/api/tags": ("ollama", {"models": [{"name": "tiny:latest"}]}),
                "/v1/models": ("openai", {"data": [{"id": "tiny"}]}),
            }
            kind, answer = known.get(self.path, ("", {}))
            self._send(200 if kind in only else 404, answer)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            other = intercept and intercept(self.path, dict(self.headers), body)
            if other:
                status, headers, text = other
                self._send(status, text, **headers)
                return
            try:
                self._send(200, self._answer(body))
            except Unknown as error:
                self._send(422, {"error": f"prompt name {error} not found"})
            except LookupError:
                self._send(404, {"error": "no such path"})

        def _answer(self, body: dict[str, Any]) -> Any:
            match self.path:
                case "/v1/embeddings":
                    vectors = listed(embed(body["input"], None))
                    return {"data": [{"index": i, "embedding": vector} for i, vector in enumerate(vectors)][::-1]}
                case "/api/embed":
                    return {"embeddings": listed(embed(body["input"], None))}
                case "/embed":
                    return listed(embed(body["inputs"], body.get("prompt_name")))
                case "/tokenize" if tokenize and "inputs" in body:
                    return [[{"id": i} for i in tokenize(text)] for text in body["inputs"]]
                case "/tokenize" if tokenize and "prompt" in body:
                    return {"tokens": tokenize(body["prompt"])}
            raise LookupError(self.path)

        def _send(self, status: int, content: Any, **headers: str) -> None:
            text = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(text)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(text)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def listed(vectors: Any) -> list[list[float]]:
    """Vectors as lists of floats, as JSON has them."""
    return [[float(x) for x in vector] for vector in vectors]
