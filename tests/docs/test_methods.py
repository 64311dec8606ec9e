"""The pages of the methods have one form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

METHODS = Path(__file__).parents[2] / "docs" / "methods"
HEADINGS = [
    "Idea",
    "Picture",
    "Equations",
    "From equation to code to recipe",
    "Figures of the paper",
    "Measured with embrew",
    "Reproduce",
    "Departures from paper and code",
]
PAGES = sorted(path.stem for path in METHODS.glob("*.md"))


def test_pages_are_found() -> None:
    assert {"llm2comp", "ese", "autoregembed", "lbr", "epic", "baselines"} <= set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_its_sections_in_order(name: str) -> None:
    text = (METHODS / f"{name}.md").read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)  # `# …` in a code block is a comment
    assert re.findall(r"^## (.+)$", prose, re.MULTILINE) == HEADINGS


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_a_short_idea_a_picture_equations_and_measured_tables(name: str) -> None:
    text = (METHODS / f"{name}.md").read_text(encoding="utf-8")
    sections = dict(zip(HEADINGS, re.split(r"^## .+$", text, flags=re.MULTILINE)[1:], strict=True))
    assert len(sections["Idea"].replace("|", " ").split()) <= 150
    assert f"(../images/methods/{name}.svg)" in sections["Picture"]
    assert sections["Equations"].count("$$") >= 6
    assert sections["From equation to code to recipe"].count("](../reference/") >= 3
    assert "<!-- table: " in sections["Measured with embrew"]
    assert "embrew train " in sections["Reproduce"]
