"""`embrew serve`: a server for any encoder."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from embrew.cli import completion
from embrew.cli.arguments import Model, ModelBackend, ModelDtype, ModelPooling
from embrew.cli.console import loading
from embrew.cli.options import options_of

COUNT = typer.Option(metavar="N", min=1)


@options_of(
    "embrew.serving.settings:Settings",
    "auto_truncate",
    served_model_name=typer.Option(metavar="NAME"),
    default_prompt_name=typer.Option(metavar="NAME", autocompletion=completion.contexts),
    max_batch_tokens=COUNT,
    max_queued_tokens=COUNT,
    max_concurrent_requests=COUNT,
    max_client_batch_size=COUNT,
    max_text_characters=COUNT,
    payload_limit=typer.Option(metavar="BYTES", min=1),
    timeout=typer.Option(metavar="SECONDS", min=0.001),
    prefix_bytes=typer.Option(metavar="BYTES", min=0),
    encoder=typer.Option(),
    encoder_folder=typer.Option(metavar="DIR"),
    max_encoders=COUNT,
    chat=typer.Option(),
    chat_template=typer.Option(metavar="FILE"),
    max_chats=COUNT,
    max_answer_tokens=COUNT,
    int8_ranges=typer.Option(metavar="VECTORS"),
    api_key_file=typer.Option(metavar="FILE"),
)
def serve(
    model: Model,
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    backend: ModelBackend = "torch",
    pooling: ModelPooling = None,
    dtype: ModelDtype = "auto",
    **limits: Any,
) -> None:
    """Serve a model over HTTP, to clients of OpenAI and of TEI.

    TEI is Text Embeddings Inference. A page at / shows similarities.

    All limits are those of this process. Ctrl-C or SIGTERM ends the server, once running requests are answered.

    Args:
        host (ADDRESS): Address to listen at; 0.0.0.0 = all addresses of this machine.
        port (PORT): Port to listen at; 0 = any free one.
    """
    loading(model)
    try:
        from embrew.serving.server import serve as run
        from embrew.serving.settings import Settings
    except ModuleNotFoundError as error:
        raise ValueError(f'{error.name} is not installed; run: pip install "embrew[serve]"') from error

    run(Settings(model, backend=backend, pooling=pooling, dtype=dtype, **limits), host=host, port=port)
