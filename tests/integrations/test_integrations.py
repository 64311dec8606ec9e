"""The examples of docs/how-to/integrations.md, run as printed, offline, with databases in memory or embedded."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from tests.serving.running import serving

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "integrations.md"
BLOCKS = re.findall(r"^```python[^\n]*\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
EXAMPLES = {re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)[0]: code for code in BLOCKS}
FIRST = EXAMPLES.pop("sentence_transformers")
PROMPTS = {"query": "Find the sentence that answers the question: ", "document": "Sentence: "}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved encoder, `saved`, and its export, `exported`."""
    place = tmp_path_factory.mktemp("integrations")
    encoder = Encoder.from_pretrained("nano", pooling="mean", max_length=128, prompts=PROMPTS)
    encoder.save_pretrained(place / "saved", verify="off")
    export_encoder(encoder, place / "exported")
    return place


@pytest.fixture(scope="module")
def encoder(place: Path) -> Encoder:
    return Encoder.from_pretrained(place / "saved")


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs the first example of the page, and then the one of a library; returns all names that they have set."""

    def run_it(library: str, *, first: str = FIRST, **given: Any) -> dict[str, Any]:
        module = pytest.importorskip(library)
        if library == "chromadb":  # whose clients in memory share their collections
            shared = module.EphemeralClient()
            for collection in shared.list_collections():
                shared.delete_collection(collection.name)
        monkeypatch.chdir(place)
        names: dict[str, Any] = dict(given)
        for code in (first, EXAMPLES[library]):
            exec(compile(code, library, "exec"), names)
        return names

    return run_it


def check(names: dict[str, Any], encoder: Encoder, best: str, score: float, stored: Sequence[Any]) -> None:
    """Check the best text, its score by both prompts, and the stored vectors, in the order of the texts."""
    documents, query = encoder.encode_document(names["texts"]), encoder.encode_query(names["question"])
    assert best == names["texts"][0]
    assert score == pytest.approx(float(documents[0] @ query), abs=1e-5)
    np.testing.assert_allclose(np.asarray(stored, dtype=np.float32), documents, atol=1e-5)


def test_every_client_has_an_example() -> None:
    clients = ("langchain_core", "llama_index", "haystack", "chromadb", "qdrant_client", "psycopg", "faiss")
    assert tuple(EXAMPLES) == clients


def test_prompts_change_the_vectors(place: Path, encoder: Encoder) -> None:
    """Otherwise no test here could find that a client drops a prompt."""
    plain, document, query = (SentenceTransformer(str(place / "exported")).encode("ice", prompt=p) for p in
                              ("", *reversed(PROMPTS.values())))  # fmt: skip
    np.testing.assert_allclose(query, encoder.encode_query("ice"), atol=1e-5)
    np.testing.assert_allclose(document, encoder.encode_document("ice"), atol=1e-5)
    assert min(np.abs(plain - query).max(), np.abs(plain - document).max(), np.abs(query - document).max()) > 1e-3


def test_langchain(run: Any, encoder: Encoder) -> None:
    names = run("langchain_core")
    by_text = {entry["text"]: entry["vector"] for entry in names["store"].store.values()}
    check(names, encoder, names["best"].page_content, names["score"], [by_text[text] for text in names["texts"]])


def test_llamaindex(run: Any, encoder: Encoder) -> None:
    pytest.importorskip("llama_index.embeddings.huggingface")
    names = run("llama_index")
    index = names["index"]
    by_text = {
        index.docstore.get_node(number).text: vector
        for number, vector in index.vector_store.data.embedding_dict.items()
    }
    check(names, encoder, names["best"].text, names["best"].score, [by_text[text] for text in names["texts"]])


def test_haystack(run: Any, encoder: Encoder) -> None:
    pytest.importorskip("haystack_integrations.components.embedders.sentence_transformers")
    names = run("haystack")
    by_text = {document.content: document.embedding for document in names["store"].filter_documents()}
    check(names, encoder, names["best"].content, names["best"].score, [by_text[text] for text in names["texts"]])


def test_chroma(run: Any, encoder: Encoder) -> None:
    names = run("chromadb")
    stored = names["collection"].get(["a", "b", "c"], include=["embeddings"])["embeddings"]
    best = names["best"]
    check(names, encoder, best["documents"][0][0], 1 - best["distances"][0][0], stored)


def test_chroma_asked_by_text(run: Any, encoder: Encoder) -> None:
    names = run("chromadb")
    model = names["model"]

    class Prompted(names["chromadb"].EmbeddingFunction):  # type: ignore[misc, name-defined]
        def __init__(self) -> None: ...

        def __call__(self, input: list[str]) -> Any:
            return list(model.encode_document(input))

        def embed_query(self, input: list[str]) -> Any:
            return list(model.encode_query(input))

    space = {"hnsw": {"space": "cosine"}}
    collection = names["client"].create_collection("asked", embedding_function=Prompted(), configuration=space)
    collection.add(ids=["a", "b", "c"], documents=names["texts"])
    best = collection.query(query_texts=[names["question"]], n_results=1)
    stored = collection.get(["a", "b", "c"], include=["embeddings"])["embeddings"]
    check(names, encoder, best["documents"][0][0], 1 - best["distances"][0][0], stored)


def test_qdrant(run: Any, encoder: Encoder) -> None:
    names = run("qdrant_client")
    stored = [point.vector for point in names["client"].retrieve("corpus", [0, 1, 2], with_vectors=True)]
    check(names, encoder, names["best"].payload["text"], names["best"].score, stored)


def test_pgvector(run: Any, encoder: Encoder, tmp_path: Path) -> None:
    """With a PostgreSQL of the package `pgserver`, which has the extension."""
    pytest.importorskip("pgvector")
    url = pytest.importorskip("pgserver").get_server(tmp_path / "postgres").get_uri()
    names = run("psycopg", URL=url)
    with names["psycopg"].connect(url) as connection:
        names["register_vector"](connection)
        by_text = dict(connection.execute("SELECT text, vector FROM corpus").fetchall())
    stored = [np.asarray(by_text[text].to_list(), dtype=np.float32) for text in names["texts"]]
    check(names, encoder, *names["best"], stored)


def test_faiss(run: Any, encoder: Encoder) -> None:
    names = run("faiss")
    best = names["texts"][names["numbers"][0][0]]
    check(names, encoder, best, float(names["scores"][0][0]), names["index"].reconstruct_n(0, 3))


@pytest.mark.parametrize("library", ["langchain_core", "chromadb", "qdrant_client", "faiss"])
def test_an_encoder_takes_the_place_of_the_export(library: str, run: Any, encoder: Encoder) -> None:
    opened = FIRST.replace('SentenceTransformer("exported")', 'embrew.Encoder.from_pretrained("saved")')
    names = run(library, first=f"import embrew\n{opened}")
    assert isinstance(names["model"], Encoder)
    np.testing.assert_array_equal(names["documents"], encoder.encode_document(names["texts"]))


def by_langchain(module: Any, folder: str) -> list[Any]:
    embeddings = module.HuggingFaceEmbeddings(model_name=folder)
    return [embeddings.embed_query("ice"), embeddings.embed_documents(["ice"])[0]]


def by_llamaindex(module: Any, folder: str) -> list[Any]:
    embedding = module.HuggingFaceEmbedding(folder)
    return [embedding.get_query_embedding("ice"), embedding.get_text_embedding("ice")]


def by_haystack(module: Any, folder: str) -> list[Any]:
    return [module.SentenceTransformersTextEmbedder(model=folder, progress_bar=False).run("ice")["embedding"]]


def by_chroma(module: Any, folder: str) -> list[Any]:
    function = module.SentenceTransformerEmbeddingFunction(folder)
    return [function(["ice"])[0], function.embed_query(["ice"])[0]]


@pytest.mark.parametrize(
    ("module", "vectors_of"),
    [
        ("langchain_huggingface", by_langchain),
        ("llama_index.embeddings.huggingface", by_llamaindex),
        ("haystack_integrations.components.embedders.sentence_transformers", by_haystack),
        ("chromadb.utils.embedding_functions", by_chroma),
    ],
)
def test_clients_that_drop_prompts_by_default(module: str, vectors_of: Any, place: Path) -> None:
    """As the page's table says; a version that applies them fails here, and the page has to change."""
    folder = str(place / "exported")
    plain = SentenceTransformer(folder).encode("ice")
    for vector in vectors_of(pytest.importorskip(module), folder):
        np.testing.assert_allclose(vector, plain, atol=1e-5)


@pytest.mark.parametrize("side", ["query", "document"])
def test_openai_clients_that_cannot_send_the_side(
    side: str, place: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Haystack's and Chroma's, with one server per side."""
    embedders = pytest.importorskip("haystack.components.embedders")
    functions = pytest.importorskip("chromadb.utils.embedding_functions")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    wanted = getattr(encoder, f"encode_{side}")("ice")
    with serving(place / "saved", default_prompt_name=side) as address:
        asked = embedders.OpenAITextEmbedder(api_base_url=f"{address}/v1", model="saved").run("ice")["embedding"]
        np.testing.assert_allclose(asked, wanted, atol=1e-5)
        function = functions.OpenAIEmbeddingFunction(model_name="saved", api_base=f"{address}/v1")
        np.testing.assert_allclose(function(["ice"])[0], wanted, atol=1e-5)


@pytest.mark.parametrize("side", ["query", "document"])
def test_langchain_sends_the_side_to_a_server(side: str, place: Path, encoder: Encoder) -> None:
    langchain = pytest.importorskip("langchain_openai")
    with serving(place / "saved") as address:
        client = langchain.OpenAIEmbeddings(
            base_url=f"{address}/v1", api_key="none", model="saved", check_embedding_ctx_length=False,
            model_kwargs={"extra_body": {"input_type": side}},
        )  # fmt: skip
        np.testing.assert_allclose(client.embed_query("ice"), getattr(encoder, f"encode_{side}")("ice"), atol=1e-5)
