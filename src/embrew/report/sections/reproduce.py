"""Reproduce: commands, versions and hashes."""

from embrew.report.section import Section
from embrew.report.subject import Subject


def section(subject: Subject) -> Section:
    """Return the section."""
    models = []
    for model in subject.comparison.models:
        run = model.seeds[0][0].run
        models.append({"model": model.name, "hash": run.get("model_hash"), "versions": dict(run.get("versions", {}))})
    values = {"command": subject.command, "models": models}
    return Section("reproduce", "Reproduce", values, values)
