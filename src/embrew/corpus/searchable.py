"""Search in vectors on disk: verify the encoder, and read the texts of the documents."""

from __future__ import annotations

import io
from typing import Any

from embrew.corpus.corpus import shards
from embrew.corpus.job import Job
from embrew.corpus.vectors import Vectors
from embrew.data.rejects import Rejects
from embrew.stores.paths import Place
from embrew.text_encoder.hashes import model_hash, tokenizer_sha256
from embrew.text_encoder.interface import TextEncoder, resolved_prompts
from embrew.text_encoder.provenance import describe_run


def query_options(vectors: Vectors, encoder: TextEncoder) -> dict[str, Any]:
    """Return keywords for `encode_query` that make an encoder's queries comparable with these vectors.

    Raises:
        ValueError: the vectors are of another model, tokenizer or prompt, of queries, or signs only.
    """
    made_of, folder = vectors.manifest.made_of, vectors.folder
    if made_of["prompt_name"] != "document":
        raise ValueError(
            f"{folder} holds vectors of a {made_of['prompt_name']}; search compares queries with documents: encode the "
            "corpus with --prompt-name document"
        )
    if made_of["precision"] == "binary":
        raise ValueError(
            f"{folder} holds signs only (precision binary), which give no cosines; encode with --precision float32 or "
            "int8"
        )
    now = {
        "model": model_hash(encoder),
        "tokenizer": tokenizer_sha256(encoder),
        "prompt": resolved_prompts(encoder)["document"],
    }
    known = {
        "model": made_of["model_hash"],
        "tokenizer": made_of["tokenizer_sha256"],
        "prompt": made_of["prompt"],
    }
    different = [name for name in known if known[name] != now[name]]
    if different:
        dtype = describe_run(encoder)["dtype"]
        other = f" (encoded in {made_of['dtype']}, opened in {dtype})" if dtype != made_of["dtype"] else ""
        raise ValueError(
            f"{folder} was encoded with another {', '.join(different)}{other}; vectors of two models cannot be "
            "compared: give the model and the --dtype that encoded it, or encode the corpus again"
        )
    return {name: made_of[name] for name in ("truncate_dim", "num_layers") if made_of[name] is not None}


def texts_of(vectors: Vectors, input: str | Place) -> list[str]:
    """Read the corpus again and return the texts of all vectors, in their order.

    Raises:
        ValueError: the corpus does not hold the ids and texts that were encoded.
    """
    made_of = vectors.manifest.made_of
    job = Job(
        input=input,
        output=vectors.folder,
        shard_rows=made_of["shard_rows"],
        id_column=made_of["id_column"],
        text_column=made_of["text_column"],
    )
    found: list[str] = []
    for shard in shards(job, Rejects(io.StringIO(), max_rate=1.0)):
        entry = vectors.manifest.shards.get(shard.number)
        if entry is None or entry.input_sha256 != shard.sha256:
            break
        found += [row.text for row in shard.rows]
    else:
        if len(found) == len(vectors):
            return found
    raise ValueError(
        f"{input} does not hold the rows that {vectors.folder} was made of (from row {len(found) + 1} on); give the "
        "corpus that was encoded, or encode this one"
    )
