"""`embrew push` against a Hub on loopback: what arrives, what does not go up, what is refused, and every error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import constants, snapshot_download
from huggingface_hub.utils import _http
from typer.testing import CliRunner

from embrew.cli import app, push
from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration, Demonstrations
from tests.conftest import SENTENCES, by_default, stir
from tests.hub.fake_hub import TOKEN, FakeHub, Fault

REPO, FREE = "me/small", ["--license", "apache-2.0"]


@pytest.fixture(scope="module")
def made(model_folder, tmp_path_factory) -> Path:
    """An encoder with a context, its export, and a run whose last stage is the encoder."""
    place = tmp_path_factory.mktemp("pushed")
    shutil.copytree(model_folder("llama"), place / "model")
    encoder = Encoder.from_pretrained(
        place / "model", attention="causal", pooling="mean", demonstrations=Demonstrations(compress="none")
    )
    encoder.backbone.add_lora({"r": 4})
    stir(encoder.backbone)
    encoder.add_context("task", Context("Find: ", (Demonstration("a", "b"),)))
    encoder.save_pretrained(place / "encoder", verify="fast")
    export_encoder(encoder, place / "export")
    (place / "run" / "one.work" / "checkpoint-2").mkdir(parents=True)
    (place / "run" / "one.work" / "checkpoint-2" / "optimizer.pt").write_bytes(b"state")
    shutil.copytree(place / "encoder", place / "run" / "one")
    (place / "run" / "run.json").write_text(json.dumps({"format": 2, "final": "one", "stages": ["one"]}))
    return place


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Iterator[FakeHub]:
    with FakeHub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(_http.time, "sleep", lambda seconds: None)
        yield hub


def run(*arguments: object) -> Any:
    done = CliRunner().invoke(app, ["push", *map(str, arguments)])
    assert TOKEN not in done.output + repr(done.exception)
    return done


def pushed(*arguments: object) -> Any:
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return done


def refused(*arguments: object) -> str:
    done = run(*arguments)
    assert done.exit_code == 1 and done.stderr.count("error: ") == 1, done.output
    return done.stderr


def contents(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("what", by_default(["run"], ["encoder", "export", "run"]))
def test_what_is_downloaded_is_what_was_uploaded(what, made, hub, tmp_path):
    done = pushed(made / what, REPO, *FREE)
    assert hub.repositories[REPO].private and len(hub.repositories[REPO].commits) == 2
    assert f"{hub.url}/{REPO}/commit/" in done.stdout
    there = snapshot_download(REPO, local_dir=tmp_path / "there", token=TOKEN)
    wanted = contents(made / "run" / "one" if what == "run" else made / what)
    got = {name: content for name, content in contents(Path(there)).items() if not name.startswith((".cache", ".git"))}
    card, before = got.pop("README.md").decode(), wanted.pop("README.md").decode()
    assert got == wanted and len(got) > 6
    assert yaml.safe_load(card.split("---\n")[1])["license"] == "apache-2.0"
    assert "| base local:model | apache-2.0 |" in card or "| base model | apache-2.0 |" in card
    assert before.count("PATH") and f'("{REPO}")' in card
    if what != "export":
        again = Encoder.from_pretrained(there)
        assert (again.encode(SENTENCES) == Encoder.from_pretrained(made / "encoder").encode(SENTENCES)).all()
        assert list(again.contexts) == ["task"]


def test_the_dry_run_sends_nothing(made, hub, monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN")
    shutil.copytree(made / "encoder", tmp_path / "encoder")
    (tmp_path / "encoder" / "optimizer.pt").write_bytes(b"x")
    done = pushed(tmp_path / "encoder", REPO, "--dry-run")
    assert hub.seen == []
    for words in ("adapters/0/adapter_model.safetensors", "contexts/task/context.json", f"to {REPO}, private"):
        assert words in done.stdout
    assert "not known; give --license" in done.stdout
    assert "not uploaded, since checksums.json does not list them: optimizer.pt" in done.stdout
    listed = json.loads(pushed(tmp_path / "encoder", REPO, "--dry-run", "--json", "--public", *FREE).stdout)
    assert (
        listed["visibility"] == "public"
        and "apache-2.0" in listed["licenses"].values()
        and listed["left_out"] == ["optimizer.pt"]
    )
    assert set(listed["files"]) == set(contents(made / "encoder")) - {"README.md"}
    assert listed["files"]["embrew.json"] == (made / "encoder" / "embrew.json").stat().st_size


def test_only_listed_files_go_up(made, hub, tmp_path):
    shutil.copytree(made / "encoder", tmp_path / "encoder")
    for name in ("optimizer.pt", "pairs.jsonl", ".env", "checkpoint-3/rng_state.pth"):
        (tmp_path / "encoder" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "encoder" / name).write_text("private")
    pushed(tmp_path / "encoder", REPO, *FREE)
    assert set(hub.files(REPO)) == {*contents(made / "encoder"), ".gitattributes"}


def test_damaged_unverified_and_other_folders(made, hub, tmp_path, make_encoder):
    folder = tmp_path / "encoder"
    shutil.copytree(made / "encoder", folder)
    weights = folder / "adapters" / "0" / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "adapters/0/adapter_model.safetensors has changed" in refused(folder, REPO, *FREE)
    weights.write_bytes(whole)
    (folder / "contexts" / "task" / "context.json").write_text("{}")
    assert "context.json has changed" in refused(folder, REPO, *FREE)
    shutil.copytree(made / "encoder", tmp_path / "old")
    (tmp_path / "old" / "checksums.json").unlink()
    said = refused(tmp_path / "old", REPO, *FREE)
    assert "has no checksums.json" in said and f"`embrew merge {tmp_path / 'old'} NEW`" in said
    export_encoder(make_encoder(), tmp_path / "unverified", verify="off")
    assert "was written without verification" in refused(tmp_path / "unverified", REPO, *FREE)
    assert "holds nothing that embrew wrote; push takes" in refused(made / "model", REPO, *FREE)
    assert "no folder" in refused(tmp_path / "nowhere", REPO, *FREE)
    assert "give USER/NAME" in refused(folder, "small", *FREE)
    assert hub.seen == []


def test_paths_of_this_machine(made, hub, tmp_path):
    shutil.copytree(made / "encoder", tmp_path / "encoder")
    card = tmp_path / "encoder" / "README.md"
    card.write_text(f"{card.read_text()}\nTrained on `{Path.home()}/secret/pairs.jsonl`.\n")
    assert f"README.md names a path of this machine, '{Path.home()}/secret/pairs.jsonl'" in refused(
        tmp_path / "encoder", REPO, *FREE
    )
    assert hub.seen == []


def with_data(folder: Path, *names: str) -> None:
    """Say in an encoder's folder that it was trained on these data sets."""
    from embrew.files.checksums import write_checksums

    entries = [{"name": name, "hub": [], "split": "train", "rows": 1} for name in names]
    (folder / "training.json").write_text(json.dumps({"data": {"one": entries}}))
    write_checksums(folder)


def test_licences_are_never_guessed(made, hub, tmp_path, monkeypatch):
    folder = tmp_path / "encoder"
    shutil.copytree(made / "encoder", folder)
    with_data(folder, "squad", "my/pairs")
    said = refused(folder, REPO)
    assert "the licence of base" in said and "my/pairs, squad is not known" in said and "--data-license" in said
    assert "squad is not known" in refused(folder, REPO, *FREE, "--data-license", "my/pairs=mit")
    assert "'quora' is none of the training data (my/pairs, squad)" in refused(
        folder, REPO, "--data-license", "quora=mit"
    )
    assert "licence 'Apache 2'; give an identifier" in refused(folder, REPO, "--license", "Apache 2")
    assert hub.seen == []
    pushed(folder, REPO, *FREE, "--data-license", "cc-by-4.0", "--data-license", "my/pairs=mit")
    card = hub.files(REPO)["README.md"].decode()
    assert "| squad | cc-by-4.0 |" in card and "| my/pairs | mit |" in card
    assert yaml.safe_load(card.split("---\n")[1])["data_licenses"] == {"my/pairs": "mit", "squad": "cc-by-4.0"}

    (folder / "README.md").write_text(card.replace(REPO, "PATH"))  # what the card has is known from then on
    pushed(folder, "me/again")
    assert hub.files("me/again")["README.md"].decode().count("| squad | cc-by-4.0 |") == 1

    monkeypatch.setattr(push, "can_ask", lambda: True)
    shutil.copyfile(made / "encoder" / "README.md", folder / "README.md")
    answers = "apache-2.0\nmit\ncc-by-4.0\n"
    done = CliRunner().invoke(app, ["push", str(folder), "me/asked"], input=answers)
    assert done.exit_code == 0, done.output
    assert "| squad | cc-by-4.0 |" in hub.files("me/asked")["README.md"].decode()


def test_a_repository_with_another_model(made, hub, tmp_path, monkeypatch):
    pushed(made / "encoder", REPO, *FREE)
    first = hub.files(REPO)
    pushed(made / "encoder", REPO, *FREE)
    assert hub.files(REPO) == first, "the same model again"
    assert "holds another model" in (said := refused(made / "export", REPO, *FREE)) and "--overwrite" in said
    assert hub.files(REPO) == first
    pushed(made / "export", REPO, *FREE, "--overwrite")
    assert set(hub.files(REPO)) == {*contents(made / "export"), ".gitattributes"}, "nothing of the first is left"
    monkeypatch.setattr(push, "can_ask", lambda: True)
    arguments = ["push", str(made / "encoder"), REPO, *FREE]
    assert CliRunner().invoke(app, arguments, input="n\n").exit_code == 1
    assert "parity.json" in hub.files(REPO)
    assert CliRunner().invoke(app, arguments, input="y\n").exit_code == 0
    assert "parity.json" not in hub.files(REPO)


def test_visibility_is_that_of_the_repository(made, hub):
    pushed(made / "encoder", REPO, *FREE, "--public")
    assert "exists and is public; give --public" in refused(made / "encoder", REPO, *FREE)
    pushed(made / "encoder", "me/private", *FREE)
    assert "exists and is private; leave out --public" in refused(made / "encoder", "me/private", *FREE, "--public")


def test_a_branch(made, hub):
    pushed(made / "encoder", REPO, *FREE, "--revision", "v1")
    assert set(hub.files(REPO)) == {".gitattributes"} and "embrew.json" in hub.files(REPO, "v1")
    pushed(made / "encoder", REPO, *FREE, "--revision", "v1")
    assert "holds another model" in refused(made / "export", REPO, *FREE, "--revision", "v1")


def test_without_a_token_or_offline(made, hub, monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refused(made / "encoder", REPO, *FREE)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    said = refused(made / "encoder", REPO, *FREE)
    assert "hf auth login" in said and "HF_TOKEN" in said
    assert hub.seen == []


CREATE, INFO, PRE, PUT, COMMIT = "repos/create", "GET /api/models", "preupload", "PUT /lfs", "POST .*/commit"
ERRORS = {
    "token": (Fault(INFO, 401, {"X-Error-Message": "Invalid credentials in Authorization header"}), "hf auth login"),
    "token, as for repositories": (Fault(INFO, 401), "does not accept the token (401)"),
    "not allowed": (Fault(CREATE, 403), "the token may not write to me/small (403)"),
    "no such owner": (Fault(CREATE, 404), "no user or organisation me"),
    "exists": (Fault(CREATE, 409), "exists and cannot be seen by the token's owner"),
    "changed meanwhile": (Fault(COMMIT, 412), "was changed at the same time (412)"),
    "too many": (
        Fault(PRE, 429, {"Retry-After": "7"}),
        "too many requests to the Hub (429); in 7 seconds, give the same",
    ),
    "an error of the Hub": (Fault(COMMIT, 503), "the Hub has an error of its own (503)"),
    "an upload": (Fault(PUT, 500), "the Hub has an error of its own (500)"),
    "no answer": (Fault(INFO, 0), "does not answer ("),
    "no answer to an upload": (Fault(PUT, 0), "does not answer ("),
    "echoes the token": (
        Fault(CREATE, 403, body=json.dumps({"error": f"no rights for {TOKEN} \n there"}).encode()),
        "(403) (no rights for … there)",
    ),
    "refused": (Fault(COMMIT, 422, body=b'{"error": "too large"}'), "refuses the upload to me/small (422) (too large)"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_the_hub(name, made, hub):
    fault, words = ERRORS[name]
    hub.faults.append(Fault(fault.pattern, fault.status, fault.headers, fault.body))
    said = refused(made / "encoder", REPO, *FREE)
    assert words in said and "Traceback" not in said and len(said) < 500, said
    if REPO in hub.repositories:
        assert set(hub.files(REPO)) == {".gitattributes"}, "no half of a model"


def test_nobody_there(made, hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "the Hub at http://127.0.0.1:9 does not answer" in refused(made / "encoder", REPO, *FREE)


def test_an_interrupted_upload_is_repeated(made, hub):
    """What was sent is not sent again, and the repository, which has no file of the model, needs no --overwrite."""
    hub.faults.append(Fault(PUT, 500, after=1))
    refused(made / "encoder", REPO, *FREE)
    assert set(hub.files(REPO)) == {".gitattributes"} and len(hub.blobs) == 1
    hub.faults.clear()
    sent, hub.seen = set(hub.blobs), []
    pushed(made / "encoder", REPO, *FREE)
    again = {request.rpartition("/")[2] for request in hub.seen if request.startswith("PUT")}
    tensors = list((made / "encoder").rglob("*.safetensors"))
    assert not again & sent and len(again | sent) == len({path.read_bytes() for path in tensors})
    assert hub.files(REPO)["embrew.json"] == (made / "encoder" / "embrew.json").read_bytes()
