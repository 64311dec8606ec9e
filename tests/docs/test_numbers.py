"""A page that cites a benchmark has its numbers from there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CITED = re.compile(r"\(?`?(benchmarks/[\w./*-]+\.md)`?")
NUMBER = re.compile(r"(?<![\w.,/])\d+\.\d+(?![\w.])")
PAPER = re.compile(r"the paper[^.;|]*\d[^.;|]*\.\d[^;|]*", re.IGNORECASE)
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks" / "results").exists(), reason="an unpacked sdist has no results"
)
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]


def cited(page: Path) -> list[tuple[str, list[Path]]]:
    """Paragraphs that cite a benchmark, each with the table that follows it; and the files cited."""
    parts, found = page.read_text().split("\n\n"), []
    for part, following in zip(parts, [*parts[1:], ""], strict=True):
        names = [name for name in CITED.findall(part) if name != "benchmarks/README.md"]
        if names and not part.lstrip().startswith("|"):
            files = [path for name in names for path in ROOT.glob(name)]
            table = "\n" + following if following.startswith("|") and not part.rstrip().endswith((".", "—")) else ""
            found.append((part + table, files))
    return found


PARAGRAPHS = [
    pytest.param(text, files, id=f"{page.relative_to(ROOT)}:{i}")
    for page in PAGES
    for i, (text, files) in enumerate(cited(page))
]


@pytest.mark.parametrize(("text", "files"), PARAGRAPHS)
def test_numbers_are_those_of_the_file_cited(text, files):
    assert files, f"no such file: {CITED.findall(text)}"
    results = [path for file in files for path in (ROOT / "benchmarks" / "results").glob(f"{file.stem}.md")]
    exact = NUMBER.findall(" ".join(path.read_text() for path in [*files, *results]))
    known = {*exact, *(f"{float(number):.1f}" for number in exact), "6.5"}  # nano's millions of parameters
    assert not [number for number in NUMBER.findall(PAPER.sub("", text)) if number not in known]


def test_enough_paragraphs_are_found():
    assert len(PARAGRAPHS) >= 8
