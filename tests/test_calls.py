"""Every call in our sources that could run or unpickle what a file holds: each is found, and says that it must not."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OPENERS = ("from_pretrained", "from_config")
FORBIDDEN_MODULES = ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve")


WORDS = re.compile(
    r"from_pretrained|from_config|SentenceTransformer\(|CrossEncoder|SparseEncoder|trust_remote_code|torch\.load|yaml\."
    rf"|allow_pickle|shell|\b(eval|exec|compile|popen|system|__import__)\(|{'|'.join(FORBIDDEN_MODULES)}"
)
"""What a file has to hold to be of interest here; the others are not parsed."""


@pytest.fixture(scope="module")
def trees() -> dict[str, list[ast.AST]]:
    """The syntax of every Python file that we ship or run, by its path; and of the code that files hold as text."""
    texts = [path for folder in ("src", "scripts", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    assert len(texts) > 200
    found = {}
    for path in sorted(texts):
        text = path.read_text(encoding="utf-8")
        if WORDS.search(text):
            name = str(path.relative_to(ROOT))
            found[name] = list(ast.walk(ast.parse(text)))
            for number, code in enumerate(held(found[name])):
                found[f"{name} (code in text {number})"] = list(ast.walk(code))
    assert [path for path in found if "code in text" in path] == [
        "benchmarks/plan.py (code in text 0)",
        *(f"benchmarks/real_encoding.py (code in text {number})" for number in (0, 1)),
        *(
            f"src/embrew/runtimes/{name}.py (code in text 0)"
            for name in ("openvino", "runtime", "sentence_transformers", "stock_folder")
        ),
        "src/embrew/storage/saving.py (code in text 0)",
    ]
    return found


def held(nodes: list[ast.AST]) -> Iterator[ast.AST]:
    """Python code that stands in a file as a string: programs for other processes."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\nimport " in "\n" + node.value:
            with suppress(SyntaxError):
                yield ast.parse(node.value)


@pytest.fixture(scope="module")
def calls(trees) -> list[tuple[str, str, ast.Call]]:
    """Where, of what and how: every call in them."""
    return [
        (f"{path}:{node.lineno}", ast.unparse(node.func), node)
        for path, nodes in trees.items()
        for node in nodes
        if isinstance(node, ast.Call)
    ]


def keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((given.value for given in node.keywords if given.arg == name), None)


def is_false(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def asked(value: ast.expr | None) -> bool:
    """Whether a keyword's value is False, or the variable of the same name: the user's own flag, False by default."""
    return is_false(value) or (value is not None and ast.unparse(value).rpartition(".")[2] == "trust_remote_code")


def test_every_model_and_tokenizer_is_opened_with_the_users_flag_or_false(calls):
    found: Counter[str] = Counter()
    for where, function, node in calls:
        owner, _, method = function.rpartition(".")
        if method not in OPENERS or owner in ("Encoder", "cls", "type(encoder)"):
            continue
        if method == "from_config":
            assert keyword(node, "trust_remote_code") is None or is_false(keyword(node, "trust_remote_code")), where
            found["from_config"] += 1
            continue
        assert asked(keyword(node, "trust_remote_code")), f"{where}: {ast.unparse(node)}"
        found["opened"] += 1
    assert found["opened"] >= 15 and found["from_config"] >= 3  # the calls are found


def test_every_sentence_transformer_is_opened_without_code_and_from_safetensors(calls):
    opened = kept = 0
    for where, function, node in calls:
        if function.rpartition(".")[2] not in ("SentenceTransformer", "CrossEncoder", "SparseEncoder"):
            continue
        if where.startswith("examples/"):  # they open their own exports
            continue
        assert is_false(keyword(node, "trust_remote_code")), f"{where}: {ast.unparse(node)}"
        if keyword(node, "modules") is None:
            assert "'use_safetensors': True" in ast.unparse(keyword(node, "model_kwargs") or node.func), where
            opened += 1
        else:
            kept += 1
    assert opened >= 2 and kept >= 2


def test_nothing_is_unpickled_or_evaluated(calls):
    loads = 0
    for where, function, node in calls:
        said = f"{where}: {ast.unparse(node)}"
        if function == "torch.load":
            assert getattr(keyword(node, "weights_only"), "value", None) is True, said
            loads += 1
        pickles = keyword(node, "allow_pickle")
        assert pickles is None or is_false(pickles), said
        assert function not in ("eval", "exec", "compile", "__import__", "os.system", "os.popen"), said
        assert function not in ("yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "pd.read_pickle"), said
        if function == "yaml.load":
            assert ast.unparse(keyword(node, "Loader") or node) == "Loader", said  # a SafeLoader, below
        shell = keyword(node, "shell")
        assert shell is None or is_false(shell), said
    assert loads == 3


def test_no_module_that_unpickles_is_imported(trees):
    errors = 0
    for path, nodes in trees.items():
        for node in nodes:
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module in FORBIDDEN_MODULES:
                assert [name.name for name in node.names] == ["UnpicklingError"], path  # what torch.load raises
                errors += 1
            assert not any(name.partition(".")[0] in FORBIDDEN_MODULES for name in names), path
    assert errors == 1
