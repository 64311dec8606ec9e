"""Hooks of the documentation: equations become MathML when the site is built, and every public name is documented."""

from __future__ import annotations

import html
import logging
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

import embrew

logger = logging.getLogger("mkdocs.hooks")
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)  # as pymdownx.arithmatex


def on_page_content(content: str, **_: Any) -> str:
    """Return the page with MathML in place of TeX."""

    def mathml(found: re.Match[str]) -> str:
        if found[1] == "span":
            return convert(html.unescape(found[2]), display="inline")
        return f'<div class="equation">{convert(html.unescape(found[2]), display="block")}</div>'

    return EQUATION.sub(mathml, content)


def on_post_build(config: Any) -> None:
    """Warn, which ends `mkdocs build --strict`, of public names that the reference does not show."""
    page = (Path(config.site_dir) / "reference" / "index.html").read_text(encoding="utf-8")
    for name in dir(embrew):
        if f'id="embrew.{name}"' not in page:
            logger.warning("embrew.%s has no anchor in reference/index.html", name)
