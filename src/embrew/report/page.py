"""Write a report: the sections as one HTML page without network access, and their content as JSON."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from embrew.evaluation.uncertainty import Difference
from embrew.files.writing import atomic_path, write_json
from embrew.report import cost, geometry, map, queries, reproduce, scores
from embrew.report.section import Section, Subject, Values, model_colours
from embrew.report.verdict import verdict

SECTIONS = (scores, queries, cost, geometry, map, reproduce)
# Characters that could end a script element, or a line of JavaScript.
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def check_packages() -> None:
    """Raise if the package that charts need is not installed, so that nothing is evaluated in vain.

    Raises:
        ImportError: it is not installed.
    """
    if find_spec("vl_convert") is None:
        raise ImportError("a report needs vl-convert-python, which is not installed; run pip install 'embrew[report]'")


def write_report(subject: Subject, output: Path) -> Values:
    """Write `output` (HTML), and `.json` beside it; return the content of the JSON file.

    Raises:
        ValueError: no task can be compared.
    """
    if not subject.comparison.tasks:
        reasons = "; ".join(f"{left_out.task}: {left_out.reason}" for left_out in subject.comparison.left_out)
        raise ValueError(f"the models have no task that can be compared ({reasons}); evaluate them alike")
    by_module = {module.__name__.rpartition(".")[2]: module.section(subject) for module in SECTIONS}
    sections = {name: section for name, section in by_module.items() if section is not None}
    sentences = [*verdict(subject.comparison), *(each.sentence for each in sections.values() if each.sentence)]
    document = {"verdict": sentences, **{name: each.document for name, each in sections.items()}}
    write_json(output.with_suffix(".json"), document)
    with atomic_path(output.with_suffix(".html")) as temporary:
        temporary.write_text(_html(subject, sections, sentences), encoding="utf-8")
    return document


def as_json(value: Any) -> Markup:
    """Return JSON for a script element; numbers that JSON cannot hold become null."""
    finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
    written = json.dumps(finite, ensure_ascii=False, separators=(",", ":"))
    return Markup(written.translate(ESCAPES))


def rendered(template: str, **values: Any) -> str:
    """Return a page of `page/` that runs no script, and loads nothing."""
    return _environment().get_template(template).render(style=_style(), policy=_policy(()), **values)


def _html(subject: Subject, sections: Mapping[str, Section], sentences: Sequence[str]) -> str:
    environment = _environment()
    names = subject.names
    scale = {"domain": names, "range": model_colours(names)}
    environment.globals["colour"] = {"field": "model", "type": "nominal", "title": None, "scale": scale}
    contents = []
    for name, section in sections.items():
        content = environment.get_template(f"sections/{name}.html").render(section.document, **section.values)
        contents.append({"name": name, "title": section.title, "html": Markup(content)})  # escaped by its template
    scripts = [_vega(), _file("script.js") or ""]
    for text in filter(None, (_file(f"sections/{name}.js") for name in sections)):
        scripts.append(f'(() => {{\n"use strict";\n{text}}})();\n')
    return environment.get_template("page.html").render(
        title=f"{names[1]} compared with {names[0]}" if len(names) == 2 else f"{len(names)} models compared",
        verdict=sentences,
        sections=contents,
        style=_style(),
        scripts=[Markup(text) for text in scripts],
        policy=_policy(scripts),
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"interval": _interval, "json": as_json, "points": _points, "signed": _signed}
    return environment


def _style() -> Markup:
    return Markup(_file("style.css") or "")


def _file(name: str) -> str | None:
    """Return a text file of `page/`; None if there is none of that name."""
    path = files("embrew.report").joinpath("page", *name.split("/"))
    return path.read_text(encoding="utf-8") if path.is_file() else None


@cache
def _vega() -> str:
    """Return Vega with Vega-Lite and Vega-Embed, as an inline script."""
    import vl_convert

    # the default of its argument is missing in the stub
    return str(vl_convert.javascript_bundle()).replace("</script", "<\\/script")  # type: ignore[call-arg]


def _policy(scripts: Sequence[str]) -> str:
    """Return the Content-Security-Policy under which only the given scripts run, and nothing is loaded.

    Vega's expressions are interpreted, so that `unsafe-eval` is not needed; Vega sets style attributes.
    """
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _points(score: float) -> str:
    return f"{100 * score:.2f}"


def _signed(score: float) -> str:
    return f"{100 * score:+.2f}".replace("-", "\u2212")


def _interval(test: Difference) -> str:
    return f"[{_signed(test.low)}, {_signed(test.high)}]"
