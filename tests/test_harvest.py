import json
from pathlib import Path

import pytest

from embrew.data import load
from embrew.evaluation import find_task
from embrew.harvest import TEST_PACKAGES, Package, harvest

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]


def package(root: Path, name: str, count: int = 12) -> Package:
    """A package of `count` functions with a useful docstring each, and of things to leave out."""
    folder = root / name
    (folder / "tests").mkdir(parents=True)
    (folder / "_vendor").mkdir()
    functions = [
        f"def function_{i}(value, *, scale=1):\n"
        f'    """Compute the {name} quantity number {NUMBERS[i]} quickly.\n\n'
        f"    Args:\n        value: What the {name} routine {NUMBERS[i]} is applied to, in metres.\n"
        f'        scale: A factor.\n    """\n'
        for i in range(count)
    ]
    (folder / "__init__.py").write_text("\n".join(functions))
    (folder / "broken.py").write_text("def (:\n")
    hidden = (
        '"""Measure a thing that nobody should see here.\n\nBecause this text lies in a folder that is left out."""\n'
    )
    (folder / "tests" / "thing.py").write_text(hidden)
    (folder / "_vendor" / "thing.py").write_text(hidden)
    (folder / "test_thing.py").write_text(hidden)
    (folder / "loud.py").write_text("raise SystemExit('imported')\n")
    return Package(name, folder, "1.0")


@pytest.fixture
def packages(tmp_path):
    return [package(tmp_path / "site", name) for name in ("networkx", "rich", "jinja2", "alpha", "beta")]


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_is_written(tmp_path, packages):
    manifest = harvest(tmp_path / "out", packages=packages, max_queries=5)
    assert json.loads((tmp_path / "out" / "manifest.json").read_text()) == manifest
    assert manifest["train"]["packages"] == {name: {"documents": 12, "version": "1.0"} for name in ("alpha", "beta")}
    assert manifest["train"]["pairs"] == 24
    assert (manifest["test"]["documents"], manifest["test"]["queries"]) == (24, 5)
    assert (manifest["dev"]["documents"], manifest["dev"]["queries"]) == (12, 5)
    assert manifest["files_not_parsed"] == dict.fromkeys(("alpha", "beta", "jinja2", "networkx", "rich"), 1)
    pair = next(row for row in read(tmp_path / "out" / "pairs.jsonl") if "alpha quantity number three" in row["query"])
    assert pair["query"] == "Compute the alpha quantity number three quickly."
    assert pair["positive"] == (
        "alpha.function_3\nfunction_3(value, scale=1)\n"
        "Args: value: What the alpha routine three is applied to, in metres. scale: A factor."
    )
    texts = [row["text"] for row in read(tmp_path / "out" / "texts.jsonl")]
    assert len(texts) == 24
    assert all("Compute the" in text and "\n\nArgs:\n" in text for text in texts)


def test_no_test_package_is_trained_on(tmp_path, packages):
    harvest(tmp_path / "out", packages=packages)
    trained = (tmp_path / "out" / "pairs.jsonl").read_text() + (tmp_path / "out" / "texts.jsonl").read_text()
    assert not any(name in trained for name in (*TEST_PACKAGES, "jinja2"))
    assert "nobody should see" not in trained


def test_a_text_that_is_tested_is_not_trained_on(tmp_path, packages):
    """A training package with a copy of a test package's documentation loses it."""
    copy = tmp_path / "site" / "copy"
    copy.mkdir()
    (copy / "__init__.py").write_text((tmp_path / "site" / "networkx" / "__init__.py").read_text())
    manifest = harvest(tmp_path / "out", packages=[*packages, Package("copy", copy, "1.0")])
    assert "copy" not in manifest["train"]["packages"]


def test_the_output_can_be_loaded_and_judged(tmp_path, packages):
    harvest(tmp_path / "out", packages=packages)
    assert len(load(tmp_path / "out" / "pairs.jsonl", kind="pairs")) == 24
    assert len(load(tmp_path / "out" / "texts.jsonl", kind="text")) == 24
    for split in ("dev", "test"):
        task = find_task(tmp_path / "out" / split)
        assert (task.name, task.kind, task.split) == (f"out-{split}", "retrieval", split)
    pairs = load(tmp_path / "out" / "test", kind="pairs", split="test")
    assert all(row["positive"].split("function_")[0].split(".")[0] in row["query"] for row in pairs)


def test_the_same_seed_writes_the_same_bytes(tmp_path, packages):
    def written(folder: str, **options: object) -> dict[str, bytes]:
        harvest(tmp_path / folder, packages=packages, max_documents=5, max_queries=3, **options)
        files = (file for file in (tmp_path / folder).rglob("*") if file.is_file())
        return {str(file.relative_to(tmp_path / folder)): file.read_bytes() for file in files}

    packages.reverse()
    first = written("a")
    packages.reverse()
    assert first == written("b")
    assert first != written("c", seed=1)
    assert set(first) == {
        "checksums.json",
        "manifest.json",
        "pairs.jsonl",
        "texts.jsonl",
        *(
            f"{split}/{name}"
            for split in ("dev", "test")
            for name in ("corpus.jsonl", "queries.jsonl", f"qrels/{split}.tsv")
        ),
    }


def test_an_existing_folder_is_kept(tmp_path, packages):
    harvest(tmp_path / "out", packages=packages)
    with pytest.raises(FileExistsError, match="exists already"):
        harvest(tmp_path / "out", packages=packages)
    harvest(tmp_path / "out", packages=packages, overwrite=True)
