"""The runtimes that vectors can be compared with, one file each."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from embrew.parity.runtimes.embrew import EmbrewServer, is_embrew
from embrew.parity.runtimes.graphs import open_onnx, open_openvino
from embrew.parity.runtimes.llama_cpp import open_gguf
from embrew.parity.runtimes.ollama import Ollama
from embrew.parity.runtimes.openai import OpenAI
from embrew.parity.runtimes.runtime import Runtime
from embrew.parity.runtimes.server import NoAnswer, Server
from embrew.parity.runtimes.tei import TextEmbeddingsInference


class Kind(StrEnum):
    """A kind of runtime."""

    SENTENCE_TRANSFORMERS = "sentence-transformers"
    EMBREW = "embrew"
    OPENVINO = "openvino"
    ONNX = "onnx"
    LLAMA_CPP = "llama.cpp"
    OPENAI = "openai"
    TEI = "tei"
    OLLAMA = "ollama"


PATHS = {"/v1/embeddings": Kind.OPENAI, "/v1": Kind.OPENAI, "/api/embed": Kind.OLLAMA, "/embed": Kind.TEI}
"""Ends of addresses and the kind of server that has them; the longest first."""
SERVERS = tuple(dict.fromkeys(PATHS.values()))


def open_runtime(name: str, *, kind: Kind | None = None, model: str | None = None, timeout: float = 60.0) -> Runtime:
    """Open what vectors are compared with.

    Args:
        name: a folder of Sentence-Transformers, embrew or OpenVINO, a file `.gguf` or `.onnx`, or an address.
        kind: of the runtime; None: by the name and what is there.
        model: name of the model on a server of several.
        timeout: seconds to wait for an answer of a server.

    Raises:
        FileNotFoundError: no such file or folder.
        ValueError: a kind that the name cannot be, a server that cannot be reached, or a model that cannot be opened.
    """
    if name.lower().startswith(("http://", "https://")):
        return _server(name, kind, model, timeout)
    if kind in SERVERS:
        raise ValueError(f"--kind {kind} is a server, and {name} is no address; give http://HOST:PORT")
    path = Path(name)
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {name}; give one, or an address that begins with http://")
    kind = kind or _kind_of(path)
    match kind:
        case Kind.ONNX:
            return open_onnx(_only(path, "*.onnx", "onnx/*.onnx"))
        case Kind.OPENVINO:
            return open_openvino(_only(path, "*.xml", "openvino/*.xml"))
        case Kind.LLAMA_CPP:
            return open_gguf(_only(path, "*.gguf"))
    return _folder(name, kind)


def _kind_of(path: Path) -> Kind:
    """Return the kind of a file or folder; of an export for several runtimes, Sentence-Transformers first."""
    patterns = {
        Kind.EMBREW: ("embrew.json", "run.json"),
        Kind.SENTENCE_TRANSFORMERS: ("modules.json",),
        Kind.OPENVINO: ("*.xml", "openvino/*.xml"),
        Kind.ONNX: ("*.onnx", "onnx/*.onnx"),
        Kind.LLAMA_CPP: ("*.gguf",),
    }
    for kind, places in patterns.items():
        if any(path.match(place) if path.is_file() else any(path.glob(place)) for place in places):
            return kind
    raise ValueError(
        f"{path} is nothing that vectors can be compared with; give a folder of Sentence-Transformers, embrew or "
        "OpenVINO, a .gguf or .onnx file, or an address"
    )


def _only(path: Path, *patterns: str) -> Path:
    """Return a file itself, or the only one in a folder that matches."""
    found = [path] if path.is_file() else [file for pattern in patterns for file in sorted(path.glob(pattern))]
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or f"no {' or '.join(patterns)}"
        raise ValueError(f"{path} has {names}; give one file")
    return found[0]


def _folder(name: str, kind: Kind) -> Runtime:
    from embrew.encoder import Encoder
    from embrew.parity.runtimes.folders import EncoderFolder, SentenceTransformersFolder
    from embrew.stock import open_stock

    if kind == Kind.EMBREW:
        return EncoderFolder(name, Encoder.from_pretrained(name, merge_adapter=True))
    return SentenceTransformersFolder(name, open_stock(name))


def _server(url: str, kind: Kind | None, model: str | None, timeout: float) -> Runtime:
    if kind is not None and kind not in SERVERS:
        raise ValueError(f"--kind {kind} is no server, and {url} is an address; choose from {', '.join(SERVERS)}")
    end = next((end for end in PATHS if urlsplit(url).path.rstrip("/").endswith(end)), "")
    kind = kind or PATHS.get(end)
    server = Server(url.rstrip("/").removesuffix(end), timeout=timeout)
    kind = kind or _asked(server)
    if kind == Kind.OLLAMA:
        return Ollama(server, model)
    api: OpenAI | TextEmbeddingsInference = TextEmbeddingsInference(server)
    if kind != Kind.TEI:
        api = OpenAI(Server(f"{server.base}/v1", timeout=timeout), model)
    return EmbrewServer(api) if is_embrew(server) else api


def _asked(server: Server) -> Kind:
    """Return the kind of a server by paths that only one kind has.

    Raises:
        ValueError: it cannot be reached, or answers none of them.
    """
    asked = (("/info", "model_id", Kind.TEI), ("/api/tags", "models", Kind.OLLAMA), ("/v1/models", "data", Kind.OPENAI))
    for path, key, kind in asked:
        try:
            answer = server.get(path)
        except NoAnswer:
            raise
        except ValueError:
            continue
        if isinstance(answer, dict) and key in answer:
            return kind
    raise ValueError(
        f"{server.shown} answers neither {', '.join(path for path, *_ in asked)}, so its kind is unknown; give --kind "
        f"{', '.join(SERVERS)}"
    )
