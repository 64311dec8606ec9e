"""`embrew serve`: a server for any encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from embrew.cli import completion
from embrew.cli.arguments import Model, ModelBackend, ModelDtype, ModelPooling, Quiet
from embrew.cli.console import loading


def option(text: str, metavar: str = "N", **more: Any) -> Any:
    """Return an option whose value is shown as `metavar`."""
    return typer.Option(metavar=metavar, help=text, **{"min": 1, **more})


def serve(
    context: typer.Context,
    model: Model,
    host: Annotated[
        str, option("Address to listen at; 0.0.0.0 = all addresses of this machine.", "ADDRESS")
    ] = "127.0.0.1",
    port: Annotated[int, option("Port to listen at; 0 = any free one.", "PORT", min=0, max=65535)] = 8000,
    backend: ModelBackend = "torch",
    pooling: ModelPooling = None,
    dtype: ModelDtype = "auto",
    served_model_name: Annotated[
        str | None, option("Name of the model; by default that of its folder.", "NAME")
    ] = None,
    default_prompt_name: Annotated[
        str | None,
        option("Prompt or context for requests that name none.", "NAME", autocompletion=completion.contexts),
    ] = None,
    auto_truncate: Annotated[
        bool,
        typer.Option(help="Truncate texts beyond the limit, where a request does not say; or refuse them with 422."),
    ] = True,
    max_batch_tokens: Annotated[
        int | None, option("Tokens per batch; by default 16384 on a GPU, 2048 on a CPU.")
    ] = None,
    max_queued_tokens: Annotated[
        int | None, option("Tokens that may wait, before 429; by default those of 16 batches.")
    ] = None,
    max_concurrent_requests: Annotated[int, option("Requests at one time, before 429.")] = 512,
    max_client_batch_size: Annotated[int, option("Texts per request, before 413.")] = 2048,
    max_text_characters: Annotated[
        int | None,
        option("Characters per text, before 413; by default 100000, or 8 per token of the longest limit."),
    ] = None,
    payload_limit: Annotated[int, option("Size of a request's body, before 413.", "BYTES")] = 8 * 2**20,
    timeout: Annotated[float, option("Time until a request is given up with 503.", "SECONDS", min=0.001)] = 300.0,
    prefix_bytes: Annotated[int, option("Memory for the keys and values of prompts.", "BYTES", min=0)] = 256 * 2**20,
    int8_ranges: Annotated[
        Path | None, option("Vectors by `embrew encode --precision int8`, whose ranges are used.", "VECTORS")
    ] = None,
    api_key_file: Annotated[
        Path | None, option("File with one API key per line; without it, EMBREW_API_KEY of the environment.", "FILE")
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

    others = ("host", "port", "quiet")  # the rest are named as the fields of `Settings`
    run(Settings(**{name: value for name, value in context.params.items() if name not in others}), host=host, port=port)
