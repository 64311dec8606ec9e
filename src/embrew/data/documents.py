"""Read files that are one document each (plain text, Markdown, reStructuredText, HTML); split texts into sentences."""

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


# A full stop, question or exclamation mark before a capital, a digit or a quotation mark; not after an abbreviation.
# Between blanks, as in tokenised text, it may also be before a small letter.
SENTENCE_END = re.compile(
    r"(?<![Ee]\.g)(?<!i\.e)(?<!etc)(?<!vs)(?<!cf)(?<!resp)(?<!al)(?<!approx)(?<!Eq)[.!?](?=\s+[\"'(A-Z0-9])"
    r"|(?<=\w\s)[.!?](?=\s+\w)"
    r"|[。！？](?=\s*[\w「『“])"
)
_TITLE = re.compile(r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Prof|Gen|Col|Sen|Rep|Gov|Jr|Sr|No|vol|ed|pp)\s?\.$")


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, in order; a line break also ends one.

    Examples:
        >>> split_sentences("Dr. Ada Lovelace wrote it. Who read it? J. Smith did, i.e. someone.")
        ['Dr. Ada Lovelace wrote it.', 'Who read it?', 'J. Smith did, i.e. someone.']
        >>> split_sentences("the wing was tested . lift increased .")
        ['the wing was tested .', 'lift increased .']
        >>> split_sentences("他写的。谁读过？")
        ['他写的。', '谁读过？']
    """
    return [text[start:end] for start, end in sentence_spans(text)]


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return where each sentence of a text begins and ends, in characters, without the blanks around it.

    Examples:
        >>> sentence_spans("Who read it? Someone did.")
        [(0, 12), (13, 25)]
    """
    spans, line_start = [], 0
    for line in text.splitlines(keepends=True):
        start = 0
        ends = []
        for end in SENTENCE_END.finditer(line):
            if not _TITLE.search(line, start, end.end()):
                ends.append(end.end())
                start = end.end()
        for begin, end_of in zip([0, *ends], [*ends, len(line)], strict=True):
            sentence = line[begin:end_of].strip()
            if sentence:
                first = line_start + line.index(sentence, begin)
                spans.append((first, first + len(sentence)))
        line_start += len(line)
    return spans
