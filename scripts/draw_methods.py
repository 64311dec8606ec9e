"""Draw `docs/images/methods/*.svg` from `scripts/method_pictures.yaml`: `python scripts/draw_methods.py`.

A picture is a column of panels. A panel shows a sequence of labelled segments, a grid of who attends to whom,
the positions where a vector is read, and those where a loss acts. Colours follow the system's light or dark mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "images" / "methods"
SOURCE = ROOT / "scripts" / "method_pictures.yaml"
WIDTH, EDGE = 800, 14
STRIP, GRID = 184, 652  # where tokens and grids begin
TOKEN, GAP, CELL = 32, 5, 10
COLOURS = {  # fill, stroke and text, light then dark
    "PROMPT": ("#e5e7eb #6b7280 #374151", "#374151 #9ca3af #e5e7eb"),
    "TEXT": ("#dbeafe #3b82f6 #1e3a8a", "#1b3358 #60a5fa #dbeafe"),
    "ECHO": ("#ede9fe #8b5cf6 #4c1d95", "#37285f #a78bfa #ede9fe"),
    "MEMORY": ("#fde7c7 #e08a00 #7c4a00", "#4d3410 #f0a93a #fde7c7"),
    "SOFT": ("#fff7e6 #e08a00 #7c4a00", "#33291a #f0a93a #fde7c7"),
    "TARGET": ("#dcf3e3 #2f9e56 #14532d", "#17402a #4cc47c #dcf3e3"),
}
CARD = ("#ffffff #fbfbfd #e5e7eb", "#16181d #1f2229 #3a3f4b")  # background, panel, border
INK = ("#111827 #4b5563 #f1f2f4", "#f3f4f6 #b6bcc8 #2b2f38")  # headings, notes, hidden cells
PILL = ("#217a43 #9a5b00", "#1f7a44 #a86400")  # loss, vector


def styles() -> str:
    """Return the style sheet: light colours, then the dark ones as a media query."""
    fixed = (
        "text{font:13px 'Segoe UI','Helvetica Neue',Arial,'DejaVu Sans',sans-serif}"
        "text.h{font-size:15px;font-weight:700}text.b{font-size:11px;font-weight:700;letter-spacing:.04em}"
        "text.p,text.v{fill:#fff;font-weight:700}text.v{font-size:10.5px}text.p{font-size:12.5px}"
        "text.s{font-size:11px}.a{fill:none;stroke-width:1.4}rect.t{stroke-width:1.5}.SOFT.t,.f{stroke-dasharray:4 3}"
    )
    themes = []
    for mode in (0, 1):
        background, panel, border = CARD[mode].split()
        heading, note, hidden = INK[mode].split()
        loss, vector = PILL[mode].split()
        rules = [
            f".k{{fill:{background}}}.w{{fill:{panel};stroke:{border}}}text.h{{fill:{heading}}}",
            f"text.n,text.s{{fill:{note}}}.o{{fill:{hidden}}}.l{{fill:{loss}}}.r{{fill:{vector}}}",
        ]
        for name, colours in COLOURS.items():
            fill, stroke, text = colours[mode].split()
            rules.append(f".{name}.t{{fill:{fill};stroke:{stroke}}}text.{name}{{fill:{text}}}")
            rules.append(f".{name}.a{{stroke:{stroke}}}.{name}.c{{fill:{stroke}}}")
        themes.append("".join(rules))
    return f"<style>{fixed}{themes[0]}@media(prefers-color-scheme:dark){{{themes[1]}}}</style>"


def number(value: float) -> str:
    """Return a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def extent(words: str, each: float) -> float:
    """Return the width of a line of text, from the mean width of a character."""
    return each * len(words.translate({ord(mark): None for mark in "_{}"}))


def text(x: float, y: float, words: str, kind: str, anchor: str = "") -> str:
    """Return a line of text; `_` sets the character or the braces after it lower."""
    parts = words.replace("{", "").split("_")
    line = escape(parts[0], quote=False)
    for part in parts[1:]:
        low, _, rest = part.partition("}") if "}" in part else (part[:1], "", part[1:])
        back = f'<tspan dy="-3">{escape(rest, quote=False)}</tspan>' if rest else ""
        line += f'<tspan dy="3" font-size="9">{escape(low, quote=False)}</tspan>{back}'
    place = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{number(x)}" y="{number(y)}" class="{kind}"{place}>{line}</text>'


def lines(x: float, y: float, words: Iterable[str], kind: str, anchor: str = "") -> list[str]:
    """Return lines of text below one another."""
    return [text(x, y + 17 * i, line, kind, anchor) for i, line in enumerate(words)]


def box(x: float, y: float, width: float, height: float, kind: str, radius: float = 6) -> str:
    """Return a rectangle with round corners."""
    size = f'width="{number(width)}" height="{number(height)}"'
    return f'<rect x="{number(x)}" y="{number(y)}" {size} rx="{number(radius)}" class="{kind}"/>'


def arrow(path: str, segment: str, dashed: bool = False) -> str:
    """Return a line that ends in an arrow head in the colour of a segment."""
    return f'<path d="{path}" class="{segment} a{" f" * dashed}" marker-end="url(#{segment})"/>'


@dataclass
class Panel:
    """One panel: its settings, and where its tokens are once `top` is known."""

    settings: dict[str, Any]
    top: float = 0
    segments: list[str] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)
    groups: list[tuple[str, str, list[int]]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    lefts: list[float] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        x = float(STRIP)
        for head, *labels in self.settings.get("tokens", []):
            segment, _, caption = head.partition(" ")
            start = len(self.labels)
            for label in labels:
                width = max(TOKEN, extent(str(label), 7.2) + 14)
                self.lefts.append(x)
                self.widths.append(width)
                self.labels.append(str(label))
                self.segments.append(segment)
                self.captions.append(caption or segment)
                x += width + GAP
            self.groups.append((segment, caption or segment, list(range(start, len(self.labels)))))

    def middle(self, token: int) -> float:
        """Return the horizontal middle of a token."""
        return self.lefts[token] + self.widths[token] / 2

    @property
    def strip(self) -> float:
        """The top of the tokens."""
        return self.top + 36

    @property
    def read(self) -> float:
        """The middle of the circles of vectors that are read."""
        return self.strip + TOKEN + 33

    @property
    def height(self) -> float:
        """The height that all parts of the panel need."""
        notes = 40 + 17 * len(self.settings.get("note", []))
        if "formula" in self.settings:
            return max(notes, 20 + 30 * len(self.settings["formula"]))
        if "layers" in self.settings:
            return max(notes, 50 + 26 * len(self.settings["layers"]))
        below = 58 if "read" in self.settings or "loss" in self.settings else 14
        grid = 50 + CELL * len(self.labels) + 17 * len(self.settings.get("pattern", []))
        return max(notes, 36 + TOKEN + below, grid if "attention" in self.settings else 0)

    def attends(self, i: int, j: int) -> bool:
        """Whether position `i` attends to position `j`."""
        if [self.captions[i], self.captions[j]] in self.settings.get("hide", []):
            return False
        return self.settings["attention"] == "bidirectional" or j <= i

    def draw(self) -> Iterator[str]:
        """Yield the elements of the panel."""
        yield box(EDGE, self.top, WIDTH - 2 * EDGE, self.height, "w", 10)
        yield text(EDGE + 14, self.top + 27, self.settings["name"], "h")
        yield from lines(EDGE + 14, self.top + 47, self.settings.get("note", []), "n")
        for i, formula in enumerate(self.settings.get("formula", [])):
            width = extent(formula, 7.4) + 28
            yield box(STRIP, self.top + 14 + 30 * i, width, 24, "l", 12)
            yield text(STRIP + width / 2, self.top + 30.5 + 30 * i, formula, "p", "middle")
        if "layers" in self.settings:
            yield from self.layers()
        if self.labels:
            yield from self.tokens()
            yield from self.outputs()
        if "attention" in self.settings:
            yield from self.grid()

    def tokens(self) -> Iterator[str]:
        """Yield the tokens, with a bracket and a caption for each group."""
        taken: list[tuple[float, float]] = []
        for segment, caption, members in sorted(self.groups, key=lambda group: group[1] == "PROMPT"):
            left, right = self.lefts[members[0]] + 2, self.lefts[members[-1]] + self.widths[members[-1]] - 2
            y = number(self.strip - 8)
            yield f'<path d="M{number(left)} {y}v-4H{number(right)}v4" class="{segment} a"/>'
            middle, half = (left + right) / 2, extent(caption, 8) / 2
            if all(middle + half < start or end < middle - half for start, end in taken):  # PROMPT only where it fits
                taken.append((middle - half, middle + half))
                yield text(middle, self.strip - 17, caption, f"b {segment}", "middle")
        for left, width, label, segment in zip(self.lefts, self.widths, self.labels, self.segments, strict=True):
            yield box(left, self.strip, width, TOKEN, f"{segment} t")
            yield text(left + width / 2, self.strip + 20.5, label, segment, "middle")

    def grid(self) -> Iterator[str]:
        """Yield the attention grid: a row per position, a column per position that it attends to."""
        cells: dict[str, list[str]] = {}
        top, count = self.top + 26, len(self.labels)
        for i in range(count):
            for j in range(count):
                kind = f"{self.segments[j]} c" if self.attends(i, j) else "o"
                cells.setdefault(kind, []).append(f"M{GRID + CELL * j} {number(top + CELL * i)}h8v8h-8z")
        yield text(GRID, self.top + 18, "attends to →", "s")
        for kind, parts in cells.items():
            yield f'<path class="{kind}" d="{"".join(parts)}"/>'
        pattern = [self.settings["attention"], *self.settings.get("pattern", [])]
        yield from lines(GRID, top + CELL * count + 14, pattern, "s")

    def outputs(self) -> Iterator[str]:
        """Yield the vectors that are read, and the positions where a loss acts."""
        below = self.strip + TOKEN + 2
        read, loss = self.settings.get("read"), self.settings.get("loss")
        if read:
            for i, token in enumerate(read["at"]):
                x = self.middle(token)
                yield arrow(f"M{number(x)} {number(below)}v15", "MEMORY")
                yield f'<circle cx="{number(x)}" cy="{number(self.read)}" r="12" class="r"/>'
                yield text(x, self.read + 4, read["labels"][i] if "labels" in read else "h", "v", "middle")
            first, last = self.middle(read["at"][0]), self.middle(read["at"][-1])
            left = first - STRIP > GRID - last
            x = first - 20 if left else last + 20
            start = self.read + 4 - 8.5 * (len(read["text"]) - 1)
            yield from lines(x, start, read["text"], "n", "end" if left else "")
        if loss:
            for token in loss["at"]:
                yield arrow(f"M{number(self.middle(token))} {number(below)}v14", "TARGET")
            centre = (self.middle(loss["at"][0]) + self.middle(loss["at"][-1])) / 2
            width = extent(loss["text"], 7.4) + 28
            x = min(max(centre - width / 2, STRIP), GRID - 16 - width)
            yield box(x, below + 20, width, 24, "l", 12)
            yield text(x + width / 2, below + 36.5, loss["text"], "p", "middle")

    def layers(self) -> Iterator[str]:
        """Yield one bar per layer: the dimensions that are trained to stand alone, and the rest."""
        left, first, rest = STRIP + 72, 110, 170
        yield text(left + first / 2, self.top + 28, "first k", "b MEMORY", "middle")
        yield text(left + 5 + first + rest / 2, self.top + 28, "the other dimensions", "b PROMPT", "middle")
        for i, (label, weight) in enumerate(self.settings["layers"]):
            y = self.top + 38 + 26 * i
            yield text(STRIP, y + 14, label, "n")
            yield box(left, y, first, 19, "MEMORY t", 4)
            yield box(left + 5 + first, y, rest, 19, "PROMPT t", 4)
            yield text(left + 20 + first + rest, y + 14, weight, "n")


def feeds(panels: list[Panel]) -> Iterator[str]:
    """Yield the curves from vectors that are read to the positions they are written into."""
    for panel in panels:
        for target, tokens in panel.settings.get("feeds", []):
            for source, token in zip(panel.settings["read"]["at"], tokens, strict=True):
                x, y = panel.middle(source), panel.read + 13
                end, bottom = panels[target].middle(token), panels[target].strip - 30
                bend = number((y + bottom) / 2)
                points = f"{number(x)} {bend} {number(end)} {bend} {number(end)} {number(bottom)}"
                yield arrow(f"M{number(x)} {number(y)}C{points}", "SOFT", dashed=True)


def draw(picture: dict[str, Any]) -> str:
    """Return a picture as SVG."""
    panels, top = [Panel(settings) for settings in picture["panels"]], float(EDGE)
    for panel in panels:
        panel.top = top
        top += panel.height + (34 if "feeds" in panel.settings else 10)
    head = '<marker id="{0}" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="6.5" markerHeight="6.5" orient="auto">'
    heads = [f'{head.format(name)}<path d="M0 1 9 5 0 9z" class="{name} c"/></marker>' for name in COLOURS]
    body = [element for panel in panels for element in panel.draw()]
    size = f'viewBox="0 0 {WIDTH} {number(top + EDGE - 10)}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="t d">',
            f'<title id="t">{escape(picture["title"])}</title>',
            f'<desc id="d">{escape(picture["description"])}</desc>',
            styles(),
            f"<defs>{''.join(heads)}</defs>",
            box(0, 0, WIDTH, top + EDGE - 10, "k", 12),
            *body,
            *feeds(panels),
            "</svg>\n",
        ]
    )


def pictures() -> dict[str, str]:
    """Return every picture by its name."""
    return {name: draw(picture) for name, picture in yaml.safe_load(SOURCE.read_text(encoding="utf-8")).items()}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures().items():
        (FOLDER / f"{name}.svg").write_text(picture, encoding="utf-8")
