"""`embrew push`: upload a saved encoder or an export to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.filesize import decimal

from embrew.cli.console import Record, can_ask, loading, print_line, print_table, show_transfers

if TYPE_CHECKING:
    from embrew.hub import Publication


def push(
    model: Path,
    repo: str,
    *,
    public: bool = False,
    license: str | None = None,
    data_license: list[str] | None = None,
    revision: str | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
) -> Record:
    """Upload a saved encoder or an export to the Hugging Face Hub.

    Files are compared with their checksums first and go up in one commit. Needs a token: `hf auth login`, or HF_TOKEN.

    Args:
        model: Folder of a trained encoder, of a training run, or of an export.
        repo (USER/NAME): Repository on the Hub.
        public: Create a public repository; private by default.
        license (ID): Licence of the base model, as the Hub's identifier; the card gives it for the model.
        data_license ([NAME=]ID): Licence of a data set that the model was trained on, repeatable; without NAME, of all.
        revision (BRANCH): Branch to upload to; created if it does not exist.
        overwrite: Replace another model that the repository holds.
        dry_run: List what would be uploaded, and send nothing.
    """
    loading(model)
    from embrew import hub

    hub.check_repo(repo)
    publication = hub.publication(model)
    licences = hub.licences(publication, base=license, data=data_license or ())
    visibility = "public" if public else "private"
    document: Record = {
        "repository": repo,
        "visibility": visibility,
        "files": {name: path.stat().st_size for name, path in publication.files.items()},
        "left_out": list(publication.left_out),
    }
    if dry_run:
        _show(publication, licences, f"to {repo}, {visibility}")
        return document | {"licenses": licences}
    unknown = [what for what, licence in licences.items() if licence is None]
    if unknown and not can_ask():
        raise ValueError(
            f"the licence of {', '.join(unknown)} is not known; look it up, and give --license for the base and "
            "--data-license NAME=LICENCE for a data set, with the Hub's identifiers (apache-2.0, mit, cc-by-4.0, other)"
        )
    complete = {what: licence or hub.identifier(_ask(what)) for what, licence in licences.items()}
    show_transfers()
    address = hub.upload(
        publication,
        repo,
        card=hub.published_card(publication, complete, repo),
        public=public,
        revision=revision,
        overwrite=overwrite,
        confirm=lambda question: can_ask() and typer.confirm(f"{question}. Replace it?", err=True),
    )
    print_line((address, "bold"))
    return document | {"licenses": complete, "commit": address}


def _ask(what: str) -> str:
    return str(typer.prompt(f"Licence of {what} (apache-2.0, mit, cc-by-4.0, other, ...)", err=True)).strip()


def _show(model: Publication, licences: dict[str, str | None], where: str) -> None:
    """Print the files with their sizes, the visibility and the licences."""
    sizes = {name: path.stat().st_size for name, path in model.files.items()} | {"README.md": len(model.card.encode())}
    print_table(["file", "size"], [(name, decimal(size)) for name, size in sizes.items()], left=["file"])
    print_line(f"{where}: {len(sizes)} files, {decimal(sum(sizes.values()))}")
    for number, (what, licence) in enumerate(licences.items()):
        option = "--data-license" if number else "--license"
        print_line(f"licence of {what}: {licence or f'not known; give {option}'}")
    if model.left_out:
        print_line(f"not uploaded, since checksums.json does not list them: {', '.join(model.left_out)}")
