import json

import pytest

from embrew.writing import atomic_folder, atomic_path, write_json, write_jsonl


def half_written(file):
    with atomic_path(file) as temporary:
        temporary.write_text("half")
        raise RuntimeError


def test_a_failed_write_leaves_the_old_file(tmp_path):
    file = tmp_path / "a.json"
    write_json(file, {"a": 1})
    with pytest.raises(RuntimeError):
        half_written(file)
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(file, {"a": float("nan")})
    assert json.loads(file.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [file]


def test_rows_are_counted_and_keep_their_letters(tmp_path):
    assert write_jsonl(tmp_path / "a.jsonl", [{"a": "ü"}, {"a": "\u2028"}]) == 2
    assert (tmp_path / "a.jsonl").read_text(encoding="utf-8") == '{"a": "ü"}\n{"a": "\u2028"}\n'


def fill(folder, text, **options):
    with atomic_folder(folder, marker="manifest.json", **options) as new:
        (new / "manifest.json").write_text(text)
        (new / f"{text}.txt").write_text(text)


def interrupted(folder):
    with atomic_folder(folder, marker="manifest.json", overwrite=True) as new:
        (new / "half.txt").write_text("half")
        raise RuntimeError


def test_folders_are_replaced_whole(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()  # an empty folder is free
    fill(folder, "one")
    with pytest.raises(FileExistsError, match="exists already"):
        fill(folder, "two")
    fill(folder, "two", overwrite=True)
    assert sorted(file.name for file in folder.iterdir()) == ["manifest.json", "two.txt"]
    with pytest.raises(RuntimeError):
        interrupted(folder)
    assert sorted(file.name for file in folder.iterdir()) == ["manifest.json", "two.txt"]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("x")
    with pytest.raises(FileExistsError, match="it is left alone"):
        fill(tmp_path / "home", "one", overwrite=True)
    assert (tmp_path / "home" / "thesis.tex").exists()
