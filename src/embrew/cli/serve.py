"""`embrew serve`: a server for any encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embrew.cli import completion
from embrew.cli.arguments import Backend, Dtype, Model, ModelBackend, ModelDtype, ModelPooling, Quiet
from embrew.cli.console import loading


def serve(
    model: Model,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen at; 0.0.0.0 = all addresses of this machine.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="Port to listen at; 0 = any free one.")
    ] = 8000,
    backend: ModelBackend = Backend.TORCH,
    pooling: ModelPooling = None,
    dtype: ModelDtype = Dtype.AUTO,
    served_model_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the model; by default that of its folder.")
    ] = None,
    default_prompt_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=completion.contexts,
            help="Prompt or context for requests that name none.",
        ),
    ] = None,
    no_auto_truncate: Annotated[
        bool,
        typer.Option(
            "--no-auto-truncate",
            help="Refuse texts beyond the limit with 422, where a request does not say; by default they are truncated.",
        ),
    ] = False,
    max_batch_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens per batch; by default 16384 on a GPU, 2048 on a CPU."),
    ] = None,
    max_queued_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens that may wait, before 429; by default those of 16 batches."),
    ] = None,
    max_concurrent_requests: Annotated[
        int, typer.Option(min=1, metavar="N", help="Requests at one time, before 429.")
    ] = 512,
    max_client_batch_size: Annotated[
        int, typer.Option(min=1, metavar="N", help="Texts per request, before 413.")
    ] = 2048,
    max_text_characters: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Characters per text, before 413; by default 100000, or 8 per token of the longest limit.",
        ),
    ] = None,
    payload_limit: Annotated[
        int, typer.Option(min=1, metavar="BYTES", help="Size of a request's body, before 413.")
    ] = 8 * 2**20,
    timeout: Annotated[
        float, typer.Option(min=0.001, metavar="SECONDS", help="Time until a request is given up with 503.")
    ] = 300.0,
    prefix_bytes: Annotated[
        int, typer.Option(min=0, metavar="BYTES", help="Memory for the keys and values of prompts.")
    ] = 256 * 2**20,
    tokenization_workers: Annotated[int, typer.Option(min=1, metavar="N", help="Threads that tokenise.")] = 2,
    int8_ranges: Annotated[
        Path | None,
        typer.Option(metavar="VECTORS", help="Vectors by `embrew encode --precision int8`, whose ranges are used."),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File with one API key per line; without it, EMBREW_API_KEY of the environment."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Serve a model over HTTP, to clients of OpenAI and of TEI.

    TEI is Text Embeddings Inference. A page at / shows similarities.

    All limits are those of this process. Ctrl-C or SIGTERM ends the server, once running requests are answered.
    """
    loading(model)
    try:
        from embrew.serving.server import serve as run
        from embrew.serving.settings import Settings
    except ModuleNotFoundError as error:
        raise ValueError(f'{error.name} is not installed; run: pip install "embrew[serve]"') from error

    settings = Settings(
        model,
        backend=backend.value,
        dtype=dtype.value,
        pooling=pooling,
        name=served_model_name,
        api_key_file=api_key_file,
        auto_truncate=not no_auto_truncate,
        default_prompt_name=default_prompt_name,
        int8_ranges=int8_ranges,
        batch_tokens=max_batch_tokens,
        prefix_bytes=prefix_bytes,
        tokenizers=tokenization_workers,
        body_bytes=payload_limit,
        items=max_client_batch_size,
        characters=max_text_characters,
        queued_tokens=max_queued_tokens,
        concurrent=max_concurrent_requests,
        timeout=timeout,
    )
    run(settings, host=host, port=port)
