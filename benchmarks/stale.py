"""Results that are inconclusive, or older than the code that they depend on."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from harness import HERE

PROTOCOL = ("harness", "outcome", "peaks", "report", "run", "stale", "work")  # in imports: every benchmark has them
SHOWN = 3  # changed files that are named


def stale(folder: Path, benchmarks: Mapping[str, set[Path]], root: Path = HERE.parent) -> dict[str, list[str]]:
    """Return by name why a result says nothing of the present code; those that hold are left out.

    Args:
        folder: the results.
        benchmarks: modules that each runs, by name; results of others, such as scores, are left out.
        root: the repository.
    """
    found = {}
    for name, modules in benchmarks.items():
        path = folder / f"{name}.json"
        why = _reasons(json.loads(path.read_text()), modules, root) if path.exists() else ["never run"]
        if why:
            found[name] = why
    return found


def _reasons(record: Mapping[str, Any], modules: set[Path], root: Path) -> list[str]:
    """Return why one result says nothing of the present code."""
    why = ["inconclusive"] if record["verdict"] == "inconclusive" else []
    if record["dirty"]:
        why.append("measured with uncommitted changes")
    commit = record["commit"]
    then = _changed(commit, root)
    if then is None:
        return [*why, f"commit {commit[:7]} is not in this repository"]
    files = [path for path in sorted(depends_on(modules, root)) if path in then]
    changed = [path for path in files if _code(_old(commit, then[path], root)) != _code((root / path).read_text())]
    if changed:
        names = ", ".join(changed[:SHOWN]) + (", …" if len(changed) > SHOWN else "")
        why.append(f"{len(changed)} files changed since {commit[:7]}: {names}")
    return why


def depends_on(modules: set[Path], root: Path) -> set[str]:
    """Return the files of this repository that modules import when they are imported, themselves included."""
    found: set[str] = set()
    waiting = [*modules]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(root).as_posix()
        if name not in found:
            found.add(name)
            waiting += [file for one in _imports(path) if (file := _file(one, root)) is not None]
    return found


@cache
def _imports(path: Path) -> tuple[str, ...]:
    """Return the names that a module imports when it is imported, with the packages that they lie in."""
    names = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names += [one.name for one in node.names]
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
    return tuple(".".join(name.split(".")[:n]) for name in names for n in range(1, name.count(".") + 2))


def _file(name: str, root: Path) -> Path | None:
    """Return the file of a module of this repository."""
    if name in PROTOCOL:
        return None
    place = root / "src" / name.replace(".", "/")
    candidates = (root / "benchmarks" / f"{name}.py", place.with_suffix(".py"), place / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


@cache
def _changed(commit: str, root: Path) -> dict[str, str | None] | None:
    """Return the files that differ from those of a commit, with their names then; None: there is no such commit."""
    done = _git(root, "diff", "--name-status", "-M", commit, "--", "src", "benchmarks")
    if done is None:
        return None
    lines = [line.split("\t") for line in done.splitlines()]
    new = _git(root, "ls-files", "--others", "--exclude-standard", "--", "src", "benchmarks") or ""
    then: dict[str, str | None] = dict.fromkeys(new.splitlines())
    return then | {names[-1]: None if kind == "A" else names[0] for kind, *names in lines}


@cache
def _old(commit: str, path: str | None, root: Path) -> str:
    """Return a file as it was; nothing where there was none."""
    return (_git(root, "show", f"{commit}:{path}") if path else None) or ""


@cache
def _code(text: str) -> str:
    """Return what a module does: without comments, docstrings and imports, which move with the files they name."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if hasattr(node, "body") and isinstance(node.body, list):
            node.body = [one for one in node.body if not isinstance(one, ast.Import | ast.ImportFrom)]
            if node.body and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
                del node.body[0]
    return ast.dump(tree)


def _git(root: Path, *words: str) -> str | None:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def lines(found: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield a line per result."""
    for name, why in found.items():
        yield f"{name:25}{'; '.join(why)}"
