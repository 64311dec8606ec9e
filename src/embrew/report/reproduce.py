"""Reproduce: commands, hardware, versions, and hashes of models, tokenizers and data."""

from __future__ import annotations

import os
import platform
import sys

from embrew.files.formats import versions
from embrew.files.names import LOCAL_PREFIX
from embrew.inspection import command
from embrew.machine import cores
from embrew.report.comparison import Model
from embrew.report.section import Section, Subject, Values
from embrew.report.sources import ModelSource


def section(subject: Subject) -> Section:
    """Return the section."""
    comparison = subject.comparison
    values = {
        "command": subject.command,
        "hardware": hardware(),
        "versions": versions(),
        "models": [_entry(subject, model) for model in comparison.models],
        "data": [
            {
                "task": task.label,
                "revision": task.first.run.get("dataset_revision"),
                "settings": dict(task.first.run.get("settings", {})),
            }
            for task in comparison.tasks
        ],
    }
    return Section("Reproduce", values)


def hardware() -> str:
    """Return the machine that made the report: system, processor, cores, and GPU if an encoder was opened on one."""
    parts = [platform.system(), platform.machine(), f"{cores()} of {os.cpu_count() or 1} cores"]
    torch = sys.modules.get("torch")  # not imported for this line
    if torch is not None and torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join(parts)


def _entry(subject: Subject, model: Model) -> Values:
    run = model.seeds[0][0].run if model.seeds[0] else {}
    sources = subject.sources.get(model.name, ())
    base = run.get("model", {}).get("base") or {}
    return {
        "model": model.name,
        "folders": [source.public_text(source.model or source.results) for source in sources],
        "commands": list(dict.fromkeys(_command(source) for source in sources if source.run)),
        "base": base.get("name"),
        "revision": base.get("revision"),
        "hash": run.get("model_hash"),
        "tokenizer": run.get("tokenizer_sha256"),
        "versions": dict(run.get("versions", {})),
    }


def _command(source: ModelSource) -> str:
    """Return the command of a run; paths that were stored by name only appear so."""
    words = [*source.log().get("command", ["train", "RECIPE"]), "--output", source.public_text(source.run)]
    return command(*(word.replace(LOCAL_PREFIX, "") for word in words))
