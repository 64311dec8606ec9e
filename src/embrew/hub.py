"""Upload a saved encoder or an export to the Hugging Face Hub: listed files only, verified, in one commit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import cast

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    ModelCard,
    ModelInfo,
    constants,
    get_token,
    is_offline_mode,
)
from huggingface_hub.errors import HTTPError, RevisionNotFoundError
from huggingface_hub.utils import validate_repo_id

from embrew.files.checksums import CARD, NAME, read_checksums
from embrew.files.formats import ENCODER, EXPORT
from embrew.files.reading import read_json
from embrew.inspection import inspect
from embrew.model.encoder_module import CardFacts
from embrew.storage.card import data_names
from embrew.storage.loading import CARD_FACTS, final_stage
from embrew.storage.parts import CONTEXTS, check_folder

TEXT_FILES = (".json", ".md", ".yaml", ".txt", ".jinja")
TOKENIZER_FILES = ("tokenizer", "vocab", "merges", "special_tokens", "added_tokens")
LICENCES_OF_DATA = "data_licenses"  # of the card's metadata: licence by data set
SHIPPED = {"nano": "apache-2.0"}
UNNAMED = "training data"  # of an encoder that does not say what it was trained on
HEADING = "## Licences"
IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9.+-]*")
RETRY = "give the same command again; what was uploaded is not uploaded again"
EXCERPT = 200  # characters of the Hub's own message that are shown


@dataclass(frozen=True)
class Publication:
    """A folder that may be published.

    Attributes:
        files: files by name in the repository; without the card.
        left_out: names of files in the folder that are not published.
        card: content of `README.md`.
        base: name of the base model.
        data: names of the data sets it was trained on; None: unknown.
    """

    files: Mapping[str, Path]
    left_out: tuple[str, ...]
    card: str
    base: str
    data: tuple[str, ...] | None


def publication(folder: str | Path) -> Publication:
    """Return what to publish of an encoder's folder, an export, or a training run (its last stage).

    Only files that `checksums.json` lists are published, and `README.md`: no checkpoints, optimizer states or data.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: it is another kind of folder; it has no checksums, or was not verified when it was written; or a
            file names a path of this machine.
        Damaged: files are missing, were added, or have changed since it was written.
    """
    path = final_stage(Path(folder))
    kind = next((kind for kind in (ENCODER, EXPORT) if (path / kind.file).is_file()), None)
    if kind is None:
        contents = inspect(path)
        what = "nothing that embrew wrote" if contents.kind == "folder" else f"{contents.kind} ({contents.summary})"
        raise ValueError(
            f"{path} holds {what}; push takes the folder of a trained encoder, of a training run (its last stage), or "
            "an export"
        )
    write_again = "export it again: `embrew export MODEL NEW`"
    if kind is ENCODER:
        in_python = f"Encoder.from_pretrained({str(path)!r}).save_pretrained('NEW', verify='full')"
        merge = f"embrew merge {quote(str(path))} NEW"
        write_again = f"save it again: {in_python} in Python, or `{merge}`, which merges its adapters"
    files: dict[str, Path] = {}
    for part in (path, *sorted(file.parent for file in path.glob(f"{CONTEXTS}/*/{NAME}"))):
        listed = read_checksums(part)
        if listed is None:
            raise ValueError(f"{part} has no {NAME}, so damage to its files is not detected; {write_again}")
        check_folder(part)
        files |= {(part / name).relative_to(path).as_posix(): part / name for name in (*listed, NAME)}
    keys = ("base", "steps", "checks") if kind is ENCODER else ("encoder", "checks")
    values = read_json(path / kind.file, keys=keys, kind=kind)
    if values["checks"]["verify"] == "off":
        raise ValueError(f"{path} was written without verification; {write_again}")
    card = (path / CARD).read_text(encoding="utf-8") if (path / CARD).is_file() else ""
    _check_paths(path, files, card)
    names = (file.relative_to(path).as_posix() for file in sorted(path.rglob("*")) if file.is_file())
    left_out = tuple(name for name in names if name not in files and name != CARD)
    if kind is ENCODER:
        facts_file = path / CARD_FACTS
        facts = cast(CardFacts, read_json(facts_file, keys=("data",))) if facts_file.is_file() else None
        base, data = values["base"]["name"], data_names(facts, steps=values["steps"])
    else:
        base, data = values["encoder"]["base"]["name"], values.get("exported_from", {}).get("data")
    return Publication(files, left_out, card, base, None if data is None else tuple(data))


def _check_paths(folder: Path, files: Mapping[str, Path], card: str) -> None:
    """Raise if a text file that is published names a folder of this machine."""
    folders = {str(Path.home()), str(folder.resolve()), str(folder.resolve().parent)} - {"/"}
    in_folders = re.compile(
        r"(?<![\w.])(?:" + "|".join(map(re.escape, sorted(folders, reverse=True))) + r")/[^\s\"'`,)]*"
    )
    texts = {folder / CARD: card}
    for path in files.values():
        if path.suffix in TEXT_FILES and not path.name.startswith(TOKENIZER_FILES):
            texts[path] = path.read_text(encoding="utf-8", errors="replace")
    for path, text in texts.items():
        if (match := in_folders.search(text)) is not None:
            raise ValueError(f"{path} names a path of this machine, {match[0]!r}, which would be published; remove it")


# ---- licences: of the card, or given; never guessed --------------------------------------------------------


def licences(model: Publication, *, base: str | None = None, data: Sequence[str] = ()) -> dict[str, str | None]:
    """Return the licence of the base model (first) and of each data set, as identifiers of the Hub; None: not known.

    Args:
        model: model to publish; licences that are not given are those of its card's metadata.
        base: licence of the base model.
        data: `NAME=LICENCE` for a data set, or one `LICENCE` for all.

    Raises:
        ValueError: a name is none of the data sets, or a licence is no identifier.
    """
    metadata = ModelCard(model.card, ignore_metadata_errors=True).data.to_dict()
    in_card = metadata.get(LICENCES_OF_DATA) or {}
    of_data = {name: in_card.get(name) for name in ((UNNAMED,) if model.data is None else model.data)}
    for entry in data:
        name, equals, licence = entry.rpartition("=")
        if equals and name not in of_data:
            sets = ", ".join(of_data) or "none: it was not trained"
            raise ValueError(f"--data-license {entry}: {name!r} is none of the training data ({sets})")
        of_data.update(dict.fromkeys([name] if equals else of_data, identifier(licence)))
    of_base = metadata.get("license") or SHIPPED.get(model.base) if base is None else identifier(base)
    return {f"base {model.base}": of_base, **of_data}


def identifier(licence: str) -> str:
    """Return a licence's identifier.

    Raises:
        ValueError: it is none.
    """
    if IDENTIFIER.fullmatch(licence) is None:
        raise ValueError(f"licence {licence!r}; give an identifier of the Hub: apache-2.0, mit, cc-by-4.0, other, ...")
    return licence


def published_card(model: Publication, licences: Mapping[str, str], repo: str) -> str:
    """Return the card with the licences, in metadata and text, and with the repository's name in its examples."""
    card = ModelCard(model.card, ignore_metadata_errors=True)
    of_base, *of_data = licences.items()
    card.data["license"] = of_base[1]
    if of_data:
        card.data[LICENCES_OF_DATA] = dict(of_data)
    before, _, rest = card.text.partition(f"\n{HEADING}\n")
    after = rest[rest.index("\n## ") :] if "\n## " in rest else ""
    rows = [f"| {what} | {licence} |" for what, licence in licences.items()]
    table = "\n".join(["| of | licence |", "|---|---|", *rows])
    text = f"{before.rstrip()}\n{after.rstrip()}\n\n{HEADING}\n\n{table}\n"
    replacements = {
        "from embrew import Encoder\n": "from embrew import Encoder\nfrom huggingface_hub import snapshot_download\n",
        'Encoder.from_pretrained("PATH")': f'Encoder.from_pretrained(snapshot_download("{repo}"))',
        'SentenceTransformer("PATH")': f'SentenceTransformer("{repo}")',
    }
    for local, remote in replacements.items():
        text = text.replace(local, remote)
    card.text = text
    return str(card)


# ---- the upload --------------------------------------------------------------------------------------------


def check_repo(repo: str) -> None:
    """Raise unless a name can be that of a repository with its owner.

    Raises:
        ValueError: it cannot.
    """
    validate_repo_id(repo)
    if "/" not in repo:
        raise ValueError(f"repository {repo!r} has no owner; give USER/NAME")


def upload(
    model: Publication,
    repo: str,
    *,
    card: str,
    public: bool = False,
    revision: str | None = None,
    overwrite: bool = False,
    confirm: Callable[[str], bool],
) -> str:
    """Upload files and card in one commit, so that a repository never holds half of a model.

    Files of the repository that are not published, those of an earlier model, are removed in the same commit.
    What an interrupted upload has sent already is not sent again.

    Args:
        model: what to publish.
        repo: `USER/NAME`.
        card: content of `README.md`.
        public: create the repository public; private otherwise.
        revision: branch to commit to; created if it does not exist.
        overwrite: replace another model that the repository holds.
        confirm: asks the user whether to replace it.

    Returns:
        Address of the commit.

    Raises:
        ValueError: there is no token; the repository has another visibility; or it holds another model, which is not
            to be replaced.
        OSError: the Hub cannot be reached, or refuses; says what to do.
    """
    token = get_token()
    if token is None:
        login = "log in with `hf auth login`, or set HF_TOKEN to a token with write access"
        raise ValueError(f"no token for the Hub; {login}")
    if is_offline_mode():
        raise ValueError("HF_HUB_OFFLINE is set, so nothing can be uploaded; unset it")
    api = HfApi(token=token)
    with explained(repo, token):
        target = _target(api, repo, public, revision)
        names = [] if target is None else [file.rfilename for file in target.siblings or ()]
        others = [name for name in names if name not in (".gitattributes", CARD)]
        if target is not None and others and not overwrite and not _holds(api, repo, target, model):
            question = f"{repo} holds another model ({len(others)} files, commit {(target.sha or '')[:8]})"
            if not confirm(question):
                raise ValueError(f"{question}; give --overwrite to replace it, or another name")
        added = [CommitOperationAdd(name, str(path)) for name, path in model.files.items()]
        removed = [CommitOperationDelete(name) for name in others if name not in model.files]
        commit = api.create_commit(
            repo,
            [CommitOperationAdd(CARD, card.encode()), *added, *removed],
            commit_message="Upload with embrew push",
            revision=revision,
            parent_commit=None if target is None else target.sha,
        )
        return commit.commit_url


def _target(api: HfApi, repo: str, public: bool, revision: str | None) -> ModelInfo | None:
    """Return what the Hub says of the branch to commit to, which is created if there is none; None: a new repository.

    Raises:
        ValueError: the repository has another visibility.
    """
    try:
        repository = api.model_info(repo)
    except OSError as error:
        if status_of(error) != 404:
            raise
        api.create_repo(repo, private=not public)
        repository = None
    if repository is not None and repository.private == public:
        if public:
            advice = "leave out --public, or change the visibility in its settings on the Hub"
            raise ValueError(f"{repo} exists and is private; {advice}")
        raise ValueError(f"{repo} exists and is public; give --public to upload to it, or another name")
    if revision is None:
        return repository
    try:
        return api.model_info(repo, revision=revision)
    except RevisionNotFoundError:
        api.create_branch(repo, branch=revision)
        return api.model_info(repo, revision=revision)


def _holds(api: HfApi, repo: str, target: ModelInfo, model: Publication) -> bool:
    """Return whether a branch holds this model already, by its checksums."""
    if not any(file.rfilename == NAME for file in target.siblings or ()):
        return False
    checksums = Path(api.hf_hub_download(repo, NAME, revision=target.sha)).read_text(encoding="utf-8")
    try:
        return bool(json.loads(checksums) == json.loads(model.files[NAME].read_text(encoding="utf-8")))
    except (ValueError, RecursionError):
        return False


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error; None: there was no answer."""
    return getattr(getattr(error, "response", None), "status_code", None)


@contextmanager
def explained(repo: str, token: str) -> Iterator[None]:
    """Turn errors of huggingface_hub and of the network into `OSError` with a message for users, without the token.

    Raises:
        OSError: a request failed.
    """
    try:
        yield
    except (HTTPError, ConnectionError, RuntimeError) as error:  # RuntimeError: of a file's upload, with its cause
        cause: BaseException = error
        while status_of(cause) is None and cause.__cause__ is not None:
            cause = cause.__cause__
        raise OSError(_message(repo, cause).replace(token, "…")) from None


def _message(repo: str, error: BaseException) -> str:
    status, owner = status_of(error), repo.partition("/")[0]
    if status is None:
        reason = " ".join(str(error).split())[:EXCERPT] or type(error).__name__
        return f"the Hub at {constants.ENDPOINT} does not answer ({reason}); check the network, then {RETRY}"
    wait = getattr(error, "response").headers.get("Retry-After")  # noqa: B009 -- an error with a status has a response
    unseen = f"{repo} exists and cannot be seen by the token's owner, or was changed at the same time"
    what, advice = {
        401: ("the Hub does not accept the token", "log in again with `hf auth login`, or set HF_TOKEN to a valid one"),
        403: (
            f"the token may not write to {repo}",
            f"use a token with write access of someone who may write to {owner}",
        ),
        404: (f"the Hub finds no user or organisation {owner}, or the token may not see it", "check the name"),
        409: (unseen, RETRY),
        412: (unseen, RETRY),
        429: ("too many requests to the Hub", f"{f'in {wait} seconds' if wait else 'in some minutes'}, {RETRY}"),
    }.get(status, ("the Hub has an error of its own", f"later, {RETRY}") if status >= 500 else ("", ""))
    answer = " ".join(str(getattr(error, "server_message", None) or "").split())[:EXCERPT]
    says = f" ({answer})" if answer else ""
    return f"{what or f'the Hub refuses the upload to {repo}'} ({status}){says}" + (f"; {advice}" if advice else "")
