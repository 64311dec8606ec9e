"""Write a report: the sections as one HTML page without network access, and their numbers as JSON and CSV."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embrew.comparison import verdict
from embrew.comparison.tables import csv_text
from embrew.comparison.verdict import best_model
from embrew.evaluation.uncertainty import Difference
from embrew.files.writing import atomic_path, write_json
from embrew.report import cost, examples, geometry, map, reproduce, scores
from embrew.report.section import Figure, Section, Subject, model_colours

if TYPE_CHECKING:
    from markupsafe import Markup

SECTIONS = (scores, examples, cost, geometry, map, reproduce)
PACKAGES = {"altair": "altair", "jinja2": "jinja2", "vl_convert": "vl-convert-python"}  # distributions by module
# Characters that could end a script element, or a line of JavaScript.
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def check_packages() -> None:
    """Raise if a package that reports need is not installed, so that nothing is evaluated in vain.

    Raises:
        ImportError: a package is not installed.
    """
    missing = [name for module, name in PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise ImportError(
            f"a report needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed; run "
            "pip install 'embrew[report]'"
        )


def write_report(subject: Subject, output: Path) -> tuple[list[str], list[Section]]:
    """Write `output` (HTML), and `.json` and `.csv` beside it; return the verdict and the sections.

    Raises:
        ValueError: no task can be compared.
    """
    if not subject.comparison.tasks:
        reasons = "; ".join(f"{one.task}: {one.reason}" for one in subject.comparison.left_out)
        raise ValueError(f"the models have no task that can be compared ({reasons}); evaluate them alike")
    sections = [section for module in SECTIONS if (section := module.section(subject)) is not None]
    sentences = [*verdict(subject.comparison), *(section.sentence for section in sections if section.sentence)]
    write_json(output.with_suffix(".json"), document(sentences, sections))
    figures = [figure for section in sections for figure in section.figures]
    texts = {".csv": csv_text([Figure._fields, *figures]), ".html": _html(subject, sections, sentences)}
    for suffix, text in texts.items():
        with atomic_path(output.with_suffix(suffix)) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return sentences, sections


def document(sentences: Sequence[str], sections: Sequence[Section]) -> dict[str, Any]:
    """Return the content of the JSON file."""
    return {"verdict": list(sentences), **{section.name: section.document for section in sections}}


def as_json(value: Any) -> Markup:
    """Return JSON for a script element; numbers that JSON cannot hold become null."""
    from markupsafe import Markup

    written = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(written.translate(ESCAPES))


def _html(subject: Subject, sections: Sequence[Section], sentences: Sequence[str]) -> str:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"interval": _interval, "json": as_json, "points": _points, "signed": _signed}
    environment.globals["chart"] = environment.get_template("chart.html").make_module().chart  # type: ignore[attr-defined]
    shown = []
    for section in sections:
        inside = environment.get_template(f"sections/{section.name}.html").render(section.values)
        shown.append({"name": section.name, "title": section.title, "html": Markup(inside)})  # escaped by its template
    own = [_file(f"sections/{section.name}.js") for section in sections]
    scripts = [_vega(), _file("script.js") or "", *(f'(() => {{\n"use strict";\n{one}}})();\n' for one in own if one)]
    names = subject.names
    return environment.get_template("page.html").render(
        title=f"{names[1]} compared with {names[0]}" if len(names) == 2 else f"{len(names)} models compared",
        names=names,
        colours=model_colours(names),
        overall=scores.overall(subject.comparison),
        best=best_model(subject.comparison),
        tasks=len(subject.comparison.tasks),
        verdict=sentences,
        sections=shown,
        style=Markup(_file("style.css")),
        scripts=[Markup(text) for text in scripts],
        policy=_policy(scripts),
    )


def _file(name: str) -> str | None:
    """Return a text file of `page/`; None if there is none of that name."""
    path = files("embrew.report").joinpath("page", *name.split("/"))
    return path.read_text(encoding="utf-8") if path.is_file() else None


@cache
def _vega() -> str:
    """Return Vega with Vega-Lite and Vega-Embed, as an inline script."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its default is missing in the stub
    return bundle.replace("</script", "<\\/script")


def _policy(scripts: Sequence[str]) -> str:
    """Return the Content-Security-Policy under which only the given scripts run, and nothing is loaded.

    Vega's expressions are interpreted, so that `unsafe-eval` is not needed; Vega sets style attributes.
    """
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _points(score: float) -> str:
    return f"{100 * score:.2f}"


def _signed(score: float) -> str:
    return f"{100 * score:+.2f}".replace("-", "\u2212")


def _interval(test: Difference) -> str:
    return f"[{_signed(test.low)}, {_signed(test.high)}]"
