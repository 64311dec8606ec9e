"""Reproduce: commands, hardware, versions, and hashes of models, tokenizers and data."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from typing import Any

from embrew.comparison import Model
from embrew.files.names import LOCAL_PREFIX
from embrew.inspection import command
from embrew.report.section import Section
from embrew.report.subject import Subject
from embrew.text_encoder.provenance import versions
from embrew.threads import cores


def section(subject: Subject) -> Section:
    """Return the section."""
    values = {
        "command": subject.command,
        "hardware": hardware(),
        "versions": versions(),
        "models": [_entry(subject, model) for model in subject.comparison.models],
        "data": _data(subject),
    }
    return Section("reproduce", "Reproduce", values, values)


def hardware() -> str:
    """Return the machine that made the report: system, processor, cores, and GPU if an encoder was opened on one."""
    found = [platform.system(), platform.machine(), f"{cores()} of {os.cpu_count() or 1} cores"]
    torch = sys.modules.get("torch")  # not imported for this line
    if torch is not None and torch.cuda.is_available():
        found.append(torch.cuda.get_device_name())
    return ", ".join(found)


def _entry(subject: Subject, model: Model) -> dict[str, Any]:
    runs = [scored.run for scored in model.seeds[0]]
    run: Mapping[str, Any] = runs[0] if runs else {}
    sources = subject.sources.get(model.name, ())
    base = run.get("model", {}).get("base") or {}
    return {
        "model": model.name,
        "folders": [each.shown(each.model or each.results) for each in sources],
        "commands": list(dict.fromkeys(_command(each.log(), each.shown(each.run)) for each in sources if each.run)),
        "base": base.get("name"),
        "revision": base.get("revision"),
        "hash": run.get("model_hash"),
        "tokenizer": run.get("tokenizer_sha256"),
        "versions": dict(run.get("versions", {})),
    }


def _command(log: Mapping[str, Any], folder: str) -> str:
    """Return the command of a run; paths that were stored by name only appear so."""
    words = [*log.get("command", ["train", "RECIPE"]), "--output", folder]
    return command(*(word.replace(LOCAL_PREFIX, "") for word in words))


def _data(subject: Subject) -> list[dict[str, Any]]:
    found = []
    for task in subject.comparison.tasks:
        key = (task.first.task, task.first.split)
        run = next(
            one.run for one in subject.comparison.models[0].seeds[0] if (one.result.task, one.result.split) == key
        )
        found.append(
            {"task": task.label, "revision": run.get("dataset_revision"), "settings": dict(run.get("settings", {}))}
        )
    return found
