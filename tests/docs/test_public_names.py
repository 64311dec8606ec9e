"""The names that `import embrew` offers: one list in four forms, and everything that README and docs import."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import embrew
from tests.docs.test_examples import blocks

SOURCE = ast.parse(Path(embrew.__file__).read_text())


def imports(tree: ast.AST) -> list[tuple[str, str]]:
    """Name and module of every `from MODULE import NAME`."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return [(alias.name, str(node.module)) for node in found for alias in node.names]


def test_dir_all_the_table_and_the_type_checker_have_the_same_names():
    branch = next(node for node in SOURCE.body if isinstance(node, ast.If))  # if TYPE_CHECKING
    assert len(embrew.__all__) >= 20
    assert dir(embrew) == embrew.__all__ == sorted(embrew.__all__) == list(embrew._MODULES)
    assert dict(imports(branch)) == embrew._MODULES


@pytest.mark.parametrize("name", embrew.__all__)
def test_a_public_name_can_be_imported(name):
    assert getattr(embrew, name).__name__ == name
    assert getattr(embrew, name).__doc__


def test_examples_import_from_the_package_itself():
    found = set()
    for place, code in blocks("python"):
        for name, module in imports(ast.parse(code)):
            if module.split(".")[0] == "embrew":
                assert module == "embrew", f"{place}: from {module} import {name}"
                found.add(name)
    assert {"Encoder", "Pooling", "Context"} <= found <= {*dir(embrew)}


def test_an_unknown_name_is_an_error():
    with pytest.raises(AttributeError, match=re.escape("module 'embrew' has no attribute 'Pool'")):
        _ = embrew.Pool
