"""Servers: OpenAI's API, Text Embeddings Inference, Ollama and `embrew serve`, by one HTTP client."""

from __future__ import annotations

import os
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx2
import numpy as np

from embrew.parity import Kind
from embrew.runtimes.registry import RUNTIMES
from embrew.runtimes.runtime import OpenedRuntime, Prompt, Refused
from embrew.text.texts import SIDES

Body = Mapping[str, str | bool | list[str] | None]  # fields of a request
KEY = "EMBREW_API_KEY"
TRIES, WAIT, LONGEST_WAIT = 3, 1, 30  # of requests that are answered 429 or 503; seconds between them
EXCERPT = 300  # characters of a server's message that are shown
PATHS: dict[str, Kind] = {"/v1/embeddings": "openai", "/v1": "openai", "/api/embed": "ollama", "/embed": "tei"}
"""Ends of addresses and the kind of server that has them; the longest first."""


class NoAnswer(ValueError):
    """A server cannot be reached, or does not answer in time."""


class Client:
    """Requests to a server. A key is read from the environment variable `EMBREW_API_KEY` and is never shown.

    Args:
        url: the server's address without the path of an API.
        timeout: seconds to wait for an answer.

    Raises:
        ValueError: the address has a query or a fragment, which the paths of a server have no place for.
    """

    def __init__(self, url: str, *, timeout: float) -> None:
        parts = urlsplit(url)
        self.base, self.timeout = url.rstrip("/"), timeout
        netloc = parts.netloc.rpartition("@")[2]
        self.address = urlunsplit(parts._replace(netloc=netloc, query="", fragment="")).rstrip("/")
        if parts.query or parts.fragment:
            raise ValueError(f"an address with a query or fragment; give {self.address}, without them")
        self.key = os.environ.get(KEY, "")
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        self.http = httpx2.Client(timeout=timeout, headers=headers)

    def answer(self, path: str, body: Body | None = None) -> Any:
        """Return the JSON that a path answers a GET with, or a POST of a body.

        Raises:
            NoAnswer: the server cannot be reached, or does not answer in time.
            Refused: status 400, 413 or 422.
            ValueError: any other failure.
        """
        for tries_left in reversed(range(TRIES)):
            response = self._send(path, body)
            if response.status_code not in (429, 503) or not tries_left:
                break
            seconds = response.headers.get("retry-after", "")
            time.sleep(min(int(seconds), LONGEST_WAIT) if seconds.isdigit() else WAIT)
        if response.status_code >= 300:
            raise self._error(response, self.address + path)
        try:
            return response.json()
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{self.address}{path} answers with invalid JSON: {self._without_key(response.text)}"
            ) from error

    def not_of_api(self, answer: object, path: str, api: str) -> ValueError:
        """Return the error for an answer that is none of an API's, with the server's message."""
        message = self._without_key(_message(answer))
        return ValueError(f"{self.address}{path} does not answer as {api} does; check --kind. It says: {message}")

    def _send(self, path: str, body: Body | None) -> httpx2.Response:
        try:
            return self.http.request("GET" if body is None else "POST", self.base + path, json=body)
        except httpx2.TimeoutException as error:
            raise NoAnswer(
                f"{self.address} gives no answer within {self.timeout:g} seconds; raise --timeout, or look at its log"
            ) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = self._without_key(str(error)) or type(error).__name__
            if isinstance(error, httpx2.ReadError | httpx2.RemoteProtocolError | httpx2.DecodingError):
                problem = f"{self.address}{path} breaks off, or is no HTTP server ({reason}); look at its log"
            else:
                problem = f"{self.address} cannot be reached ({reason}); is the server running, and there?"
            raise NoAnswer(problem) from error

    def _error(self, response: httpx2.Response, where: str) -> ValueError:
        status = response.status_code
        try:
            message = self._without_key(_message(response.json()))
        except (ValueError, RecursionError):
            message = self._without_key(response.text)
        if status in (400, 413, 422):
            return Refused(f"{where} answers {status}: {message}")
        if status in (401, 403):
            advice = f"set the environment variable {KEY} to its key"
            message = f"(not allowed): {f'the key in {KEY} is not accepted' if self.key else advice}. {message}"
        elif status in (429, 503):
            message = f"{TRIES} times (busy); try again later. {message}"
        elif status < 400:
            to = self._without_key(response.headers.get("location", "nowhere"))
            message = f"(redirects to {to}), which is not followed; give that address"
        elif status == 404:
            message = f"({message}); check the address, --model and --kind"
        else:
            message = f"(error): {message}"
        return ValueError(f"{where} answers {status} {message}".rstrip(" ."))

    def _without_key(self, text: str) -> str:
        text = text.replace(self.key, "***") if self.key else text
        return " ".join(text.split())[:EXCERPT]


def _message(answer: Any) -> str:
    """Return the message in an error's JSON."""
    for key in ("error", "message", "detail"):
        answer = answer.get(key, answer) if isinstance(answer, dict) else answer
    return str(answer)


@dataclass(frozen=True)
class Api:
    """The requests and answers of a kind of server.

    Attributes:
        title: name of the kind.
        path: path of requests for vectors.
        texts: key of the texts in a request.
        vectors: function that returns the vectors of an answer.
        reads: names of runtimes, as of `OpenedRuntime`.
        about: path that only this kind of server has, and a key of its answer: the list of models, if there is one.
        model: key of a model's name in that list; None: the server has one model.
        by_name: whether a request can name a prompt.
    """

    title: str
    path: str
    texts: str
    vectors: Callable[[Any], list[object]]
    reads: tuple[str, ...]
    about: tuple[str, str]
    model: str | None = None
    by_name: bool = False


def _by_index(answer: Any) -> list[object]:
    """Return the vectors of OpenAI's API, which may come in any order, or as float32 in base64 without being asked."""
    items = answer["data"]
    by_index = {item.get("index", position): item["embedding"] for position, item in enumerate(items)}
    vectors = [by_index[index] for index in range(len(items))]
    return [np.frombuffer(b64decode(vector), dtype="<f4") if isinstance(vector, str) else vector for vector in vectors]


APIS: dict[Kind, Api] = {
    "tei": Api(
        "Text Embeddings Inference",
        "/embed",
        "inputs",
        lambda answer: [answer[i] for i in range(len(answer))],
        ("sentence-transformers", "vllm", "tei", "onnx"),
        ("/info", "model_id"),
        by_name=True,
    ),
    "ollama": Api(
        "Ollama",
        "/api/embed",
        "input",
        lambda answer: answer["embeddings"],
        ("llama.cpp",),
        ("/api/tags", "models"),
        model="name",
    ),
    "openai": Api(
        "OpenAI's API", "/v1/embeddings", "input", _by_index, tuple(RUNTIMES), ("/v1/models", "data"), model="id"
    ),
}


class ApiServer(OpenedRuntime):
    """A server that is asked by an API. A prompt that it was started with is applied by it.

    Args:
        client: sends the requests.
        api: of the server.
        model: name of the model; None: its only one.
    """

    def __init__(self, client: Client, api: Api, model: str | None) -> None:
        self.client, self.api = client, api
        self.name, self.reads, self.by_name = f"{client.address}{api.path} ({api.title})", api.reads, api.by_name
        self.fields = {} if api.model is None else {"model": model or self._only_model(api.model)}

    def embed(self, texts: Sequence[str], prompt: Prompt | None) -> object:
        """Return vectors of texts."""
        return self.request(texts, {} if prompt is None else {"prompt_name": prompt.name})

    def request(self, texts: Sequence[str], fields: Body) -> object:
        """Return vectors of texts, of a request with further fields."""
        answer = self.client.answer(self.api.path, {self.api.texts: list(texts), **self.fields, **fields})
        try:
            return self.api.vectors(answer)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self.client.not_of_api(answer, self.api.path, self.api.title) from None

    def token_ids(self, text: str) -> list[int] | None:
        """Return ids by `/tokenize` of Text Embeddings Inference, vLLM or llama-server; None: there is none."""
        bodies: tuple[Body, ...] = (
            {"inputs": [text], "add_special_tokens": True},
            {"prompt": text, "add_special_tokens": True, **self.fields},
            {"content": text, "add_special": True},
        )
        for body in bodies:
            try:
                answer = self.client.answer("/tokenize", body)
                tokens = [token["id"] for token in answer[0]] if "inputs" in body else answer["tokens"]
            except (ValueError, KeyError, TypeError):
                continue
            if tokens and all(isinstance(token, int) for token in tokens):
                return list(tokens)
        return None

    def _only_model(self, key: str) -> str:
        path, models = self.api.about
        try:
            names = [str(model[key]) for model in self.client.answer(path)[models]]
        except (KeyError, TypeError):
            names = []
        if len(names) != 1:
            listed = ", ".join(names) or "no model"
            raise ValueError(f"{self.client.address}{path} lists {listed}; name one with --model")
        return names[0]


class EmbrewServer(ApiServer):
    """`embrew serve`, asked as the methods of its encoder are called.

    Learned tokens have other ids than in an export, so that ids are not compared.
    """

    def __init__(self, client: Client, api: Api, model: str | None) -> None:
        super().__init__(client, api, model)
        self.name, self.reads = self.name.replace("(", "(embrew, "), ()
        self.by_words, self.by_name = False, True

    def embed(self, texts: Sequence[str], prompt: Prompt | None) -> object:
        """Return vectors as the method of a prompt gives them: with the limit of its side."""
        assert prompt is not None  # by_words is False
        side = prompt.method.removeprefix("encode_")
        if side in SIDES:
            return self.request(texts, {"input_type": side})
        return self.request(texts, {} if prompt.is_default else {"prompt_name": prompt.name})

    def token_ids(self, text: str) -> list[int] | None:
        """Return None."""
        return None


def open_server(url: str, *, kind: Kind | None, model: str | None, timeout: float) -> ApiServer:
    """Open a server by its address.

    Raises:
        ValueError: a kind that is no server; a server that cannot be reached, or whose kind is unknown.
    """
    if kind is not None and kind not in APIS:
        raise ValueError(f"--kind {kind} is no server, and {url} is an address; choose from {', '.join(APIS)}")
    end = next((end for end in PATHS if urlsplit(url).path.rstrip("/").endswith(end)), "")
    client = Client(url.rstrip("/").removesuffix(end), timeout=timeout)
    api = APIS[kind or PATHS.get(end) or _kind_of(client)]
    try:
        is_embrew = client.answer("/info")["server"] == "embrew"
    except (ValueError, KeyError, TypeError):
        is_embrew = False
    return (EmbrewServer if is_embrew else ApiServer)(client, api, model)


def _kind_of(client: Client) -> Kind:
    """Return the kind of a server by paths that only one kind has.

    Raises:
        ValueError: it cannot be reached, or answers none of them.
    """
    for kind, api in APIS.items():
        path, key = api.about
        try:
            answer = client.answer(path)
        except NoAnswer:
            raise
        except ValueError:
            continue
        if isinstance(answer, dict) and key in answer:
            return kind
    paths = ", ".join(api.about[0] for api in APIS.values())
    raise ValueError(f"{client.address} answers neither {paths}, so its kind is unknown; give --kind {', '.join(APIS)}")
