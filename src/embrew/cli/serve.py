"""`embrew serve`: a server for any encoder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embrew.cli.arguments import Backend, Dtype, Model, ModelBackend, ModelDtype, Quiet
from embrew.cli.console import loading

if TYPE_CHECKING:
    from embrew.text_encoder.precision import Ranges

KEY = "EMBREW_API_KEY"


def serve(
    model: Model,
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 = all addresses of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 = any free one.")] = 8000,
    backend: ModelBackend = Backend.TORCH,
    dtype: ModelDtype = Dtype.AUTO,
    served_model_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the model; by default that of its folder.")
    ] = None,
    default_prompt_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Prompt or context for requests that name none.")
    ] = None,
    auto_truncate: Annotated[
        bool, typer.Option(help="Truncate texts beyond the limit, where a request does not say; else refuse them.")
    ] = True,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes that compute.")] = 1,
    device: Annotated[
        list[str] | None, typer.Option(help="Device, such as cuda:0; repeatable: one worker on each.")
    ] = None,
    max_batch_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of tokens per batch; 16384 on a GPU, 2048 on a CPU by default."),
    ] = None,
    max_queued_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens that may wait, before 429; by default 16 batches.")
    ] = None,
    max_concurrent_requests: Annotated[int, typer.Option(min=1, help="Requests at one time, before 429.")] = 512,
    max_client_batch_size: Annotated[int, typer.Option(min=1, help="Texts per request, before 413.")] = 2048,
    payload_limit: Annotated[int, typer.Option(min=1, help="Bytes of a request's body, before 413.")] = 8 * 2**20,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds until a request is given up with 503.")] = 300.0,
    prefix_bytes: Annotated[int, typer.Option(min=0, help="Memory in bytes for the keys and values of prompts.")] = 256
    * 2**20,
    tokenization_workers: Annotated[int, typer.Option(min=1, help="Threads that tokenise.")] = 2,
    int8_ranges: Annotated[
        Path | None,
        typer.Option(metavar="VECTORS", help="Vectors by `embrew encode --precision int8`, whose ranges are used."),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"File with one API key per line; without it, {KEY} of the environment."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Serve a model over HTTP, to clients of OpenAI and of TEI.

    The APIs are those of OpenAI and of Text Embeddings Inference (TEI), and a page at / shows similarities. Ctrl-C or
    SIGTERM ends the server, once running requests are answered.
    """
    loading(model)
    try:
        from embrew.serving.server import serve as run
    except ImportError as error:
        raise ValueError(f'{error.name} is not installed; run: pip install "embrew[serve]"') from error
    from embrew.serving.settings import Limits, Settings

    limits = Limits(
        body_bytes=payload_limit,
        items=max_client_batch_size,
        queued_tokens=max_queued_tokens,
        concurrent=max_concurrent_requests,
        timeout=timeout,
    )
    settings = Settings(
        model,
        backend=backend.value,
        dtype=dtype.value,
        name=served_model_name,
        keys=_keys(api_key_file),
        auto_truncate=auto_truncate,
        default_prompt_name=default_prompt_name,
        batch_tokens=max_batch_tokens,
        prefix_bytes=prefix_bytes,
        workers=max(workers, len(device or ())),
        devices=tuple(device or ()),
        tokenizers=tokenization_workers,
        ranges=_ranges(int8_ranges),
        limits=limits,
    )
    run(settings, host=host, port=port)


def _keys(file: Path | None) -> tuple[str, ...]:
    """Return the API keys of a file, or that of the environment; none: no key is needed."""
    if file is None:
        return tuple(filter(None, [os.environ.get(KEY, "").strip()]))
    keys = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    if not keys:
        raise ValueError(f"{file} holds no API key; write one per line")
    return keys


def _ranges(folder: Path | None) -> Ranges | None:
    if folder is None:
        return None
    from embrew.corpus import read_vectors

    found = read_vectors(folder).ranges
    if found is None:
        raise ValueError(f"{folder} has no int8 ranges; make it with `embrew encode --precision int8`")
    return found
