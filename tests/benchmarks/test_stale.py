"""Results that are out of date are found from the files that a benchmark imports, at the commit of its result."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import stale

FILES = {
    "benchmarks/encode.py": "import sides\nfrom embrew.model import layers\n",
    "benchmarks/sides.py": "ROWS = 32\n",
    "benchmarks/harness.py": "ROUNDS = 7\n",
    "src/embrew/__init__.py": "",
    "src/embrew/model/__init__.py": '"""The model."""\n',
    "src/embrew/model/layers.py": '"""Layers."""\n\nfrom embrew.product import multiply\n\nTWICE = multiply\n',
    "src/embrew/product.py": 'def multiply(a, b):\n    """Return a product."""\n    return a * b\n',
    "src/embrew/other.py": "X = 1\n",
}


@pytest.fixture
def repository(tmp_path):
    """A repository whose one benchmark was run at its first commit."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(root, *words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", "-C", root, *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(root):
    git(root, "add", "-A")
    git(root, "commit", "-qm", "change")


def reasons(root, **changes):
    """What is wrong with a result of the first commit."""
    for one in (stale._imports, stale._changed, stale._old):
        one.cache_clear()
    first = git(root, "rev-list", "--max-parents=0", "HEAD")
    record = {"verdict": "pass", "dirty": False, "commit": first, **changes}
    (root / "results").mkdir(exist_ok=True)
    (root / "results" / "encode.json").write_text(json.dumps(record))
    benchmarks = {"encode": {root / "benchmarks" / "encode.py"}}
    return stale.stale(root / "results", benchmarks, root).get("encode", [])


def test_files_that_are_imported(repository):
    found = stale.depends_on({repository / "benchmarks" / "encode.py"}, repository)
    assert found == FILES.keys() - {"src/embrew/other.py", "benchmarks/harness.py"}


def test_a_result_of_the_present_code_holds(repository):
    assert reasons(repository) == []


@pytest.mark.parametrize("committed", [True, False])
def test_a_changed_file_is_named(repository, committed):
    (repository / "src/embrew/product.py").write_text("def multiply(a, b):\n    return b * a\n")
    if committed:
        commit(repository)
    first = git(repository, "rev-list", "--max-parents=0", "HEAD")[:7]
    assert reasons(repository) == [f"1 files changed since {first}: src/embrew/product.py"]


def test_a_moved_file_with_other_words_is_the_same_code(repository):
    git(repository, "mv", "src/embrew/product.py", "src/embrew/model/product.py")
    moved = repository / "src/embrew/model/product.py"
    moved.write_text(moved.read_text().replace("Return a product.", "Multiply.") + "# the end\n")
    layers = repository / "src/embrew/model/layers.py"
    layers.write_text(layers.read_text().replace("embrew.product", "embrew.model.product"))
    commit(repository)
    assert reasons(repository) == []


def test_what_does_not_depend_on_the_change_holds(repository):
    (repository / "src/embrew/other.py").write_text("X = 2\n")
    (repository / "benchmarks/harness.py").write_text("ROUNDS = 8\n")
    assert reasons(repository) == []


def test_a_new_file_that_is_not_added_yet_counts(repository):
    (repository / "benchmarks/sides.py").write_text("import fresh\nROWS = 32\n")
    (repository / "benchmarks/fresh.py").write_text("Y = 1\n")
    assert "benchmarks/fresh.py" in reasons(repository)[0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"verdict": "inconclusive"}, ["inconclusive"]),
        ({"verdict": "miss"}, []),
        ({"dirty": True}, ["measured with uncommitted changes"]),
        ({"commit": "1234567890"}, ["commit 1234567 is not in this repository"]),
        ({"commit": "unknown"}, ["commit unknown is not in this repository"]),
    ],
)
def test_other_reasons(repository, changes, expected):
    assert reasons(repository, **changes) == expected


def test_a_benchmark_without_a_result(repository):
    (repository / "results").mkdir()
    assert stale.stale(repository / "results", {"encode": set()}, repository) == {"encode": ["never run"]}
    assert list(stale.lines({"encode": ["never run"]})) == ["encode                   never run"]


@pytest.mark.slow
def test_the_modules_of_a_benchmark():
    """Peaks of memory depend on how they are taken and on what is run."""
    root = Path(__file__).parents[2]
    code = "import run; print(*sorted(path.stem for path in run.modules_of(run.BENCHMARKS['ctkd-memory-32k'])))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root / "benchmarks"
    )
    assert done.stdout.split() == ["ctkd_step", "peaks"]
