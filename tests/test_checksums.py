"""Checksums of a folder: what is noticed, what is not compared, and what is read twice."""

import hashlib
import json

import pytest

from embrew.files import checksums
from embrew.files.checksums import Damaged, check_files, read_checksums, write_checksums


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "model"
    (made / "adapters" / "0").mkdir(parents=True)
    (made / "contexts" / "task").mkdir(parents=True)
    for name in ("a.json", "b.bin", "README.md", ".hidden", "adapters/0/c.json", "contexts/task/d.json"):
        (made / name).write_text(f"content of {name}")
    write_checksums(made / "contexts" / "task")
    write_checksums(made)
    return made


def test_what_is_listed(folder):
    listed = read_checksums(folder)
    assert listed == {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("a.json", "adapters/0/c.json", "b.bin")
    }
    assert check_files(folder) and check_files(folder / "contexts" / "task")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "flipped bit": flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["a.json", "b.bin", "adapters/0/c.json"])
def test_every_damage_is_noticed(folder, name, damage):
    DAMAGE[damage](folder / name)
    with pytest.raises(Damaged, match=f"{name} {'is missing' if damage == 'missing' else 'has changed'}"):
        check_files(folder)


@pytest.mark.parametrize("damage", ["flipped bit", "truncated", "empty"])
def test_damaged_checksums(folder, damage):
    """Any bit of it: the names, the hashes, the braces."""
    whole = (folder / checksums.NAME).read_bytes()
    places = range(0, len(whole), 7) if damage == "flipped bit" else [0]
    for place in places:
        content = bytearray(whole)
        content[place] ^= 1
        (folder / checksums.NAME).write_bytes(content)
        if damage != "flipped bit":
            (folder / checksums.NAME).write_bytes(whole)
            DAMAGE[damage](folder / checksums.NAME)
        try:
            assert json.loads((folder / checksums.NAME).read_bytes()) == json.loads(whole)  # white space
        except (ValueError, AssertionError):
            with pytest.raises(ValueError, match=r"is damaged|this embrew reads format 2"):
                check_files(folder)


def test_what_users_may_change(folder):
    (folder / "README.md").write_text("my own words")
    (folder / "results.json").write_text("{}")
    (folder / ".DS_Store").write_text("")
    assert check_files(folder)


def test_a_file_that_loaders_would_read_is_noticed(folder):
    (folder / "my-exports").mkdir()
    (folder / "my-exports" / "added_tokens.json").write_text("{}")
    assert check_files(folder, read=["added_tokens.json"]), "no file of this folder was written here"
    for place in ("", "adapters/0/"):
        (folder / f"{place}added_tokens.json").write_text("{}")
        assert check_files(folder)
        with pytest.raises(Damaged, match=rf": {place}added_tokens\.json was added"):
            check_files(folder, read=["added_tokens.json"])
        (folder / f"{place}added_tokens.json").unlink()


@pytest.mark.parametrize("files", [{"../other": "0" * 64}, {"/etc/passwd": "0" * 64}, ["a.json"], "a.json", None])
def test_names_stay_inside(folder, files):
    values = {"format": 2, "files": files, "sha256": checksums.digest_of(files)}
    (folder / checksums.NAME).write_text(json.dumps(values))
    with pytest.raises(Damaged, match="is damaged"):
        check_files(folder)
