"""Pages as two renderers show them: no raw Markdown in the text, and comments change nothing."""

from __future__ import annotations

import html
import re
from pathlib import Path

import markdown
import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
SITE = sorted((ROOT / "docs").rglob("*.md"))
ON_GITHUB = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
]
PAGES = {"CommonMark": [*ON_GITHUB, *SITE], "Python-Markdown": SITE}
RENDERERS = {
    "CommonMark": MarkdownIt("commonmark").enable("table").render,  # as GitHub
    "Python-Markdown": lambda text: markdown.markdown(text, extensions=["admonition", "attr_list", "tables"]),  # mkdocs
}
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"(`[^`\n]*`)|<!--.*?-->", re.DOTALL)  # not in code
RAW = re.compile(r"\*\*|\]\(|^\s*(?:[-*] |\|.*\|$)", re.MULTILINE)


def shown(page: str) -> str:
    """Return the page without comments and space around tags."""
    return re.sub(r"\s*(<[^>]*>)\s*", r"\1", re.sub(r"\s+", " ", COMMENT.sub(r"\1", page)))


def text(page: str) -> str:
    """Return what is read outside code."""
    return html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"(?s)<(pre|code)\b.*?</\1>", "", COMMENT.sub(r"\1", page))))


@pytest.mark.parametrize("renderer", RENDERERS)
def test_pages_are_rendered_whole(renderer):
    assert len(PAGES[renderer]) > 50
    for path in PAGES[renderer]:
        source, render = FENCED.sub("", path.read_text(encoding="utf-8")), RENDERERS[renderer]
        page = render(source)
        assert [line for line in text(page).splitlines() if RAW.search(line)] == [], path.relative_to(ROOT)
        assert shown(page) == shown(render(COMMENT.sub(r"\1", source))), path.relative_to(ROOT)


@pytest.mark.parametrize("renderer", RENDERERS)
def test_a_comment_at_the_start_of_a_line_is_noticed(renderer):
    source = "- one and\n  <!-- note -->2<!-- /note --> of **three**\n- [four](four.md)\n"
    assert shown(RENDERERS[renderer](source)) != shown(RENDERERS[renderer](COMMENT.sub(r"\1", source)))
