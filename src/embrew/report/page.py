"""Write a report: the sections as one HTML page without network access, and their numbers as JSON and CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embrew.comparison import verdict
from embrew.evaluation.uncertainty import Difference
from embrew.files.writing import atomic_path, write_json
from embrew.report.section import Figure, Section
from embrew.report.sections import SECTIONS
from embrew.report.subject import Subject

if TYPE_CHECKING:
    import jinja2


def write_report(subject: Subject, output: Path) -> list[Section]:
    """Write `output` (HTML), and `.json` and `.csv` beside it; return the sections.

    Raises:
        ImportError: a package of `embrew[report]` is not installed.
        ValueError: no task can be compared.
    """
    if not subject.comparison.tasks:
        reasons = "; ".join(f"{one.task}: {one.reason}" for one in subject.comparison.left_out)
        raise ValueError(f"the models have no task that can be compared ({reasons}); evaluate them alike")
    found = [module.section(subject) for module in SECTIONS.values()]
    sections = [section for section in found if section is not None]
    sentences = verdict(subject.comparison)
    write_json(
        output.with_suffix(".json"),
        {"verdict": sentences, **{section.name: section.document for section in sections}},
    )
    with atomic_path(output.with_suffix(".csv")) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Figure._fields)
        writer.writerows(figure for section in sections for figure in section.figures)
    with atomic_path(output) as temporary:
        temporary.write_text(html(subject, sections, sentences), encoding="utf-8")
    return sections


def html(subject: Subject, sections: Sequence[Section], sentences: Sequence[str]) -> str:
    """Return the page."""
    templates = _templates()
    shown = [
        {
            "name": section.name,
            "title": section.title,
            "html": templates.get_template(f"sections/{section.name}.html").render(section.values),
        }
        for section in sections
    ]
    names = ", ".join(model.name for model in subject.comparison.models)
    from markupsafe import Markup

    parts: dict[str, Any] = {"style": Markup(_text("style.css")), "script": Markup(_text("script.js"))}
    for each in shown:
        each["html"] = Markup(each["html"])  # escaped by its template
    return templates.get_template("page.html").render(
        title=f"Comparison: {names}", verdict=sentences, sections=shown, **parts
    )


def _templates() -> jinja2.Environment:
    try:
        import jinja2
    except ImportError as error:
        raise ImportError("a report needs jinja2, which is not installed; run pip install 'embrew[report]'") from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"points": _points, "difference": _difference, "slug": lambda text: text.replace(" ", "-")}
    return environment


def _text(name: str) -> str:
    return files("embrew.report").joinpath("page", name).read_text(encoding="utf-8")


def _points(score: float) -> str:
    return f"{100 * score:.2f}"


def _difference(test: Difference) -> str:
    return f"{100 * test.difference:+.2f} [{100 * test.low:+.2f}, {100 * test.high:+.2f}]"
