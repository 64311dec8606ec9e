"""Upload a publication to a repository of the Hub in one commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelInfo, get_token, is_offline_mode
from huggingface_hub.errors import RevisionNotFoundError
from huggingface_hub.utils import validate_repo_id

from embrew.files.checksums import CARD, NAME
from embrew.hub.errors import explained, status_of
from embrew.hub.publication import Publication

KEPT = (".gitattributes", CARD)


def check_repo(repo: str) -> None:
    """Raise unless a name can be that of a repository with its owner.

    Raises:
        ValueError: it cannot.
    """
    validate_repo_id(repo)
    if "/" not in repo:
        raise ValueError(f"repository {repo!r} has no owner; give USER/NAME")


def upload(
    found: Publication,
    repo: str,
    *,
    card: str,
    public: bool = False,
    revision: str | None = None,
    overwrite: bool = False,
    confirm: Callable[[str], bool] = lambda question: False,
) -> str:
    """Upload files and card in one commit, so that a repository never holds half of a model.

    Files of the repository that are not published, those of an earlier model, are removed in the same commit.
    What an interrupted upload has sent already is not sent again.

    Args:
        found: what to publish.
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
    token = _token()
    api = HfApi(token=token)
    with explained(repo, token):
        there = _repository(api, repo)
        if there is None:
            api.create_repo(repo, private=not public)
        elif there.private == public:
            raise ValueError(_other_visibility(repo, public=public))
        at = _branch(api, repo, revision) if revision is not None else there
        names = [] if at is None else [each.rfilename for each in at.siblings or ()]
        others = [name for name in names if name not in KEPT]
        if at is not None and others and not overwrite and not _is_same(api, repo, at, found):
            question = f"{repo} holds another model ({len(others)} files, commit {(at.sha or '')[:8]})"
            if not confirm(question):
                raise ValueError(f"{question}; give --overwrite to replace it, or another name")
        added = [CommitOperationAdd(name, str(path)) for name, path in found.files.items()]
        removed = [CommitOperationDelete(name) for name in others if name not in found.files]
        commit = api.create_commit(
            repo,
            [CommitOperationAdd(CARD, card.encode()), *added, *removed],
            commit_message="Upload with embrew push",
            revision=revision,
            parent_commit=None if at is None else at.sha,
        )
        return commit.commit_url


def _token() -> str:
    token = get_token()
    if token is None:
        raise ValueError(
            "no token for the Hub; log in with `hf auth login`, or set HF_TOKEN to a token with write access"
        )
    if is_offline_mode():
        raise ValueError("HF_HUB_OFFLINE is set, so nothing can be uploaded; unset it")
    return token


def _repository(api: HfApi, repo: str) -> ModelInfo | None:
    """Return what the Hub says of a repository; None: there is none that the token's owner can see."""
    try:
        return api.model_info(repo)
    except OSError as error:
        if status_of(error) == 404:
            return None
        raise


def _branch(api: HfApi, repo: str, revision: str) -> ModelInfo:
    """Return what the Hub says of a branch, which is created if there is none."""
    try:
        return api.model_info(repo, revision=revision)
    except RevisionNotFoundError:
        api.create_branch(repo, branch=revision)
        return api.model_info(repo, revision=revision)


def _other_visibility(repo: str, *, public: bool) -> str:
    if public:
        return f"{repo} exists and is private; leave out --public, or change the visibility in its settings on the Hub"
    return f"{repo} exists and is public; give --public to upload to it, or another name"


def _is_same(api: HfApi, repo: str, at: ModelInfo, found: Publication) -> bool:
    """Return whether a repository holds this model already, by its checksums."""
    if not any(each.rfilename == NAME for each in at.siblings or ()):
        return False
    there = Path(api.hf_hub_download(repo, NAME, revision=at.sha)).read_text(encoding="utf-8")
    try:
        return bool(json.loads(there) == json.loads(found.files[NAME].read_text(encoding="utf-8")))
    except ValueError:
        return False
