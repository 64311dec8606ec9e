"""Servers: OpenAI's API, Text Embeddings Inference, Ollama and `embrew serve`."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from embrew.check_passport import APIS, PATHS, Api
from embrew.http_client import Body, Client, NoAnswer
from embrew.parity import Kind
from embrew.runtimes.registry import RUNTIMES
from embrew.runtimes.runtime import OpenedRuntime, Prompt
from embrew.text.texts import SIDES

READS: dict[str, tuple[str, ...]] = {
    "tei": ("sentence-transformers", "vllm", "tei", "onnx"),
    "ollama": ("llama.cpp",),
    "openai": tuple(RUNTIMES),
}
"""Names of the runtimes that a kind of server may run, as of `OpenedRuntime`."""


class ApiServer(OpenedRuntime):
    """A server that is asked by an API. A prompt that it was started with is applied by it.

    Args:
        client: sends the requests.
        api: of the server.
        model: name of the model; None: its only one.
    """

    def __init__(self, client: Client, api: Api, model: str | None) -> None:
        self.client, self.api = client, api
        self.name, self.reads, self.by_name = f"{client.address}{api.path} ({api.title})", READS[api.kind], api.by_name
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


def _kind_of(client: Client) -> str:
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
