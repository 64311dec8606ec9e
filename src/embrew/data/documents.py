"""Read files that are one document each: plain text, Markdown, reStructuredText, HTML."""

import re
from html.parser import HTMLParser

from embrew.files.reading import Place

PROSE = (".md", ".markdown", ".rst", ".html", ".htm")
_UNSEEN = {"script", "style", "template", "noscript", "svg"}
_LINES = {
    *("address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "figcaption", "figure", "footer"),
    *("form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section"),
    *("table", "td", "th", "tr", "ul"),
}
"""Elements that begin and end a line."""


def read_prose(path: Place) -> dict[str, str]:
    """Return the text of a file of one document, of HTML without markup, and its title where HTML has one.

    Raises:
        ValueError: it is not UTF-8.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not valid UTF-8 ({error.reason}); convert it to UTF-8, or move it away") from None
    if "\0" in text:
        raise ValueError("holds a zero byte, as in UTF-16; convert it to UTF-8, or move it away")
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\n\ufeff", "\n")
    if not path.name.lower().endswith((".html", ".htm")):
        return {"text": text}
    page = _Page()
    page.feed(text)
    page.close()
    lines = (" ".join(line.split()) for line in "".join(page.parts).split("\n"))
    title = " ".join("".join(page.title).split())
    return {"text": re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip(), **({"title": title} if title else {})}


class _Page(HTMLParser):
    """The title of an HTML page, and the texts that a reader sees, with line breaks between blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.title: list[str] = []
        self.parts: list[str] = []
        self._open: list[str] = []  # elements that are not shown, and the title

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Begin an element."""
        if tag in _UNSEEN or (tag == "title" and not self.title):
            self._open.append(tag)
        elif tag in _LINES:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """End an element."""
        if tag in self._open:
            del self._open[self._open.index(tag) :]
        elif tag in _LINES:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        """Add a text; in HTML, its line breaks are blanks."""
        if not self._open:
            self.parts.append(" ".join(data.split("\n")))
        elif self._open == ["title"]:
            self.title.append(data)
