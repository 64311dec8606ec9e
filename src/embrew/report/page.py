"""Write a report: the sections as one HTML page without network access, and their numbers as JSON and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from embrew.comparison import verdict
from embrew.comparison.tables import csv_text
from embrew.comparison.verdict import best_model
from embrew.evaluation.task import GridCache
from embrew.files.writing import atomic_path, write_json
from embrew.report.chart import model_colours
from embrew.report.score_rows import overall
from embrew.report.scripts import policy, scripts
from embrew.report.section import Figure, Section
from embrew.report.sections import SECTIONS
from embrew.report.subject import Subject
from embrew.report.templates import file, templates


def write_report(subject: Subject, output: Path) -> list[Section]:
    """Write `output` (HTML), and `.json` and `.csv` beside it; return the sections.

    Raises:
        ValueError: no task can be compared.
    """
    if not subject.comparison.tasks:
        reasons = "; ".join(f"{one.task}: {one.reason}" for one in subject.comparison.left_out)
        raise ValueError(f"the models have no task that can be compared ({reasons}); evaluate them alike")
    subject = replace(subject, cache=GridCache())  # kept in memory for this page only
    found = [module.section(subject) for module in SECTIONS.values()]
    sections = [section for section in found if section is not None]
    sentences = sentences_of(subject, sections)
    write_json(
        output.with_suffix(".json"),
        {"verdict": sentences, **{section.name: section.document for section in sections}},
    )
    with atomic_path(output.with_suffix(".csv")) as temporary:
        figures = [figure for section in sections for figure in section.figures]
        temporary.write_text(csv_text([Figure._fields, *figures]), encoding="utf-8")
    with atomic_path(output) as temporary:
        temporary.write_text(html(subject, sections, sentences), encoding="utf-8")
    return sections


def sentences_of(subject: Subject, sections: Sequence[Section]) -> list[str]:
    """Return the verdict: on the mean, on the tasks, and what sections add."""
    return [*verdict(subject.comparison), *(section.sentence for section in sections if section.sentence)]


def html(subject: Subject, sections: Sequence[Section], sentences: Sequence[str]) -> str:
    """Return the page."""
    environment = templates()
    from markupsafe import Markup

    shown = []
    for section in sections:
        inside = environment.get_template(f"sections/{section.name}.html").render(section.values)
        shown.append({"name": section.name, "title": section.title, "html": Markup(inside)})  # escaped by its template
    inline = scripts([section.name for section in sections])
    comparison = subject.comparison
    names = [model.name for model in comparison.models]
    return environment.get_template("page.html").render(
        title=f"{names[1]} compared with {names[0]}" if len(names) == 2 else f"{len(names)} models compared",
        names=names,
        colours=model_colours(names),
        overall=overall(comparison),
        best=best_model(comparison),
        tasks=len(comparison.tasks),
        verdict=sentences,
        sections=shown,
        style=Markup(file("style.css")),
        scripts=[Markup(text) for text in inline],
        policy=policy(inline),
    )
