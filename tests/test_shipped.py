"""Unknown names and files that cannot be read: which of the two, the nearest name, and no long list."""

import os

import pytest

from embrew.cli.recipe import read_launch
from embrew.evaluation.suites import read_suite
from embrew.recipe import Recipe, list_recipes, read_recipe
from embrew.sweep.rows import read_sweep


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("llm2comp/nanno", "'llm2comp/nano'"),
        ("LLM2Comp/nano", "'llm2comp/nano'"),
        ("qwen3-0.6b", "'epic/qwen3-0.6b'"),
        ("launch/fdsp2", "'launch/fsdp2'"),
        ("zzzz", None),
        ("a\nb", None),
    ],
)
def test_an_unknown_name(name, nearest):
    with pytest.raises(FileNotFoundError) as error:
        Recipe.load(name)
    said = str(error.value)
    assert said.startswith(f"no recipe named {name!r}; ") and said.endswith(f"shows all {len(list_recipes())}")
    assert ("did you mean" in said) == (nearest is not None) and (nearest or "") in said
    assert sum(one in said for one in list_recipes()) <= 3 and len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("mine.yml", "no file 'mine.yml'; did you mean 'mine.yaml'"),
        ("./mien.yaml", "no file './mien.yaml'; did you mean 'mine.yaml'"),
        ("llm2comp/nano.yaml", "did you mean the shipped recipe 'llm2comp/nano'"),
        ("nowhere/x.yaml", "no file 'nowhere/x.yaml'$"),
        ("~no-such-user/x.yaml", "no file '~no-such-user/x.yaml': there is no such user"),
        ("", "no recipe is named ''"),
    ],
)
def test_a_file_that_is_not_there(given, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "mine.yaml").write_text("seed: 1")
    with pytest.raises(FileNotFoundError, match=words):
        Recipe.load(given)


def test_suites_sweeps_and_launches():
    with pytest.raises(FileNotFoundError, match="no suite named 'quik'; did you mean 'quick'"):
        read_suite("quik")
    with pytest.raises(
        FileNotFoundError, match="no sweep named 'ratios'; did you mean 'lbr/ratio'.*choose from autoregembed/abl"
    ):
        read_sweep("ratios", "llm2comp/nano")
    with pytest.raises(FileNotFoundError, match="no configuration named 'launch/fsdp'; did you mean 'launch/fsdp2'"):
        read_launch("launch/fsdp")


def test_what_is_no_text_is_one_line_each(tmp_path):
    (tmp_path / "empty.yaml").touch()
    (tmp_path / "blank.yaml").write_text(" \n")
    (tmp_path / "latin.yaml").write_bytes(b"seed: 1 \xe9\n")
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))
    (tmp_path / "large.yaml").write_bytes(b"a" * 4_000_001)
    os.mkfifo(tmp_path / "pipe.yaml")
    for name, words in {
        "": "is a folder; give a recipe's YAML file",
        "empty.yaml": "is empty; give a recipe's YAML file",
        "blank.yaml": "is empty; give a recipe's YAML file",
        "latin.yaml": "not valid UTF-8 .* at byte 8",
        "binary.yaml": "not valid UTF-8 .* at byte 128",
        "large.yaml": "4,000,001 bytes; a recipe has at most 4,000,000",
        "pipe.yaml": "is a pipe or a device, not a file",
    }.items():
        with pytest.raises(ValueError, match=words) as error:
            read_recipe(tmp_path / name)
        assert len(str(error.value).splitlines()) == 1
    with pytest.raises(ValueError, match="'/dev/null' is a pipe or a device, not a file"):
        read_recipe("/dev/null")
