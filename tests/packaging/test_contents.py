"""What the wheel may hold is listed in CONTRIBUTING.md: every file of the package matches, and every entry is used."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "embrew"
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]


def listed() -> list[str]:
    """The patterns of the table."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## What is distributed")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
    return [pattern for row in rows for pattern in re.findall(r"`([^`]+)`", row)]


def test_every_file_of_the_package_is_listed() -> None:
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    by_pattern = {pattern: set(PACKAGE.glob(pattern)) for pattern in listed()}
    assert len(by_pattern) == 15 and all(by_pattern.values())
    assert not files - set[Path]().union(*by_pattern.values())


def test_the_sdist_leaves_out_what_is_large() -> None:
    sdist = BUILD["targets"]["sdist"]
    assert sdist["exclude"] == ["/benchmarks/results"]
    assert BUILD["targets"]["wheel"] == {"packages": ["src/embrew"]}
    kept = [path for name in sdist["include"] for path in (ROOT / name[1:]).rglob("*") if path.is_file()]
    large = {
        path.relative_to(ROOT).as_posix()
        for path in kept
        if path.stat().st_size > 300_000 and ROOT / "benchmarks" / "results" not in path.parents
    }
    assert large == {"src/embrew/assets/nano/model.safetensors", "src/embrew/assets/nano/tokenizer.json"}
