"""`embrew push`: upload a saved encoder or an export to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from embrew.cli.arguments import AsJson, Quiet
from embrew.cli.console import can_ask, loading, out, print_json, show_transfers

if TYPE_CHECKING:
    from embrew.hub.licences import Licences
    from embrew.hub.publication import Publication


def push(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Folder of a trained encoder, of a training run, or of an export.")
    ],
    repo: Annotated[str, typer.Argument(metavar="USER/NAME", help="Repository on the Hub.")],
    public: Annotated[bool, typer.Option("--public", help="Create a public repository; private by default.")] = False,
    license: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Licence of the base model, as the Hub's identifier; the card gives it for the model."
        ),
    ] = None,
    data_license: Annotated[
        list[str] | None,
        typer.Option(
            "--data-license",
            metavar="[NAME=]ID",
            help="Licence of a data set that the model was trained on, repeatable; without NAME, of all.",
        ),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(metavar="BRANCH", help="Branch to upload to; created if it does not exist.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace another model that the repository holds.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be uploaded, and send nothing.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Upload a saved encoder or an export to the Hugging Face Hub.

    Files are compared with their checksums first and go up in one commit. Needs a token: `hf auth login`, or HF_TOKEN.
    """
    loading(model)
    from embrew.hub.licences import complete, known_licences, published_card
    from embrew.hub.publication import publication
    from embrew.hub.upload import check_repo, upload

    check_repo(repo)
    found = publication(model)
    licences = known_licences(found, base=license, data=data_license or ())
    if dry_run:
        _show(found, licences, repo, public=public)
        print_json(_document(found, licences, repo, public=public))
        return
    show_transfers()
    licences = complete(licences, _ask if can_ask() else None)
    card = published_card(found, licences, repo)
    address = upload(
        found,
        repo,
        card=card,
        public=public,
        revision=revision,
        overwrite=overwrite,
        confirm=_confirm if can_ask() else lambda question: False,
    )
    out().print(f"[bold]{escape(address)}[/]", soft_wrap=True)
    print_json(_document(found, licences, repo, public=public) | {"commit": address})


def _ask(what: str) -> str:
    return str(typer.prompt(f"Licence of {what} (apache-2.0, mit, cc-by-4.0, other, ...)", err=True)).strip()


def _confirm(question: str) -> bool:
    return typer.confirm(f"{question}. Replace it?", err=True)


def _document(found: Publication, licences: Licences, repo: str, *, public: bool) -> dict[str, Any]:
    return {
        "repository": repo,
        "visibility": "public" if public else "private",
        "license": licences.of_base,
        "data_licenses": dict(licences.of_data),
        "files": {name: path.stat().st_size for name, path in found.files.items()},
        "left_out": list(found.left_out),
    }


def _show(found: Publication, licences: Licences, repo: str, *, public: bool) -> None:
    """Print the files with their sizes, the visibility and the licences."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("file")
    shown.add_column("size", justify="right")
    for name, path in found.files.items():
        shown.add_row(Text(name), decimal(path.stat().st_size))
    shown.add_row("README.md", decimal(len(found.card.encode())))
    out().print(shown)
    lines = [f"to {repo}, {'public' if public else 'private'}: {len(found.files) + 1} files, {decimal(found.size)}"]
    lines += [f"licence of base {licences.base}: {licences.of_base or 'not known; give --license'}"]
    lines += [
        f"licence of {name}: {licence or 'not known; give --data-license'}"
        for name, licence in licences.of_data.items()
    ]
    if found.left_out:
        lines.append(f"not uploaded, since checksums.json does not list them: {', '.join(found.left_out)}")
    for line in lines:
        out().print(Text(line), soft_wrap=True)
