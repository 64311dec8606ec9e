"""`--json`: every command that prints a table has it, and then prints one JSON document on stdout and nothing else."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from embrew.cli import app
from tests.cli.scene import ask, write_small

NO_TABLE = {
    "train": "writes run.json, or sweep.json",
    "encode": "writes a manifest",
    "export": "writes a folder",
    "passport": "writes a folder",
    "merge": "writes a folder",
    "average": "writes a folder",
    "center": "writes a folder",
    "serve": "answers requests until it is stopped",
    "recipe show": "prints YAML",
    "recipe copy": "writes a file",
    "recipe check": "prints one line",
    "recipe schema": "prints JSON",
    "context remove": "prints one line",
    "data fetch": "prints names of files",
}
"""Commands without `--json`, and why."""
STS = "--data sts.jsonl.gz"
COMMANDS = {
    "plan": "plan recipe.yaml",
    "runs": "runs run",
    "cache": "cache",
    "recipe list": "recipe list",
    "table": "table results results-2",
    "diff": "diff results results-2",
    "search": "search encoder which? again? --index index --build beir/corpus.jsonl",
    "evaluate": f"evaluate encoder {STS} --kind sts",
    "analyze surface": f"analyze surface encoder {STS}",
    "parity": "parity encoder --against encoder",
    "context add": "context add encoder other --instruction x",
    "context list": "context list encoder",
    "data show": "data show recipe.yaml",
    "data overlap": "data overlap recipe.yaml 'evaluation={dev: [sts.jsonl.gz]}'",
    "questions": "questions beir/corpus.jsonl -o out/questions.jsonl --writer model --max-passages 1 --per-passage 1",
    "data mine": "data mine encoder pairs.jsonl out/mined.jsonl --dry-run --relative-margin 0",
}


def commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and objects of the command line's commands, with those of groups."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


FOUND = dict(commands(typer.main.get_command(app)))


@pytest.fixture(scope="module")
def place(model_folder, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("scene")
    write_small(place, model_folder("llama"))
    rows = [{"question": f"question {i}", "answer": f"answer {i}"} for i in range(4)]
    (place / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


def test_every_command_that_prints_a_table_has_the_option():
    having = {name for name, command in FOUND.items() if any("--json" in option.opts for option in command.params)}
    analyses = {name for name in FOUND if name.startswith("analyze ")}
    elsewhere = {
        "adapt",
        "into-space",
        "doctor",
        "push",
        "compare",
    }  # adapting/, test_doctor.py, hub/test_push.py, report/
    assert having == set(FOUND) - set(NO_TABLE) == {*COMMANDS, *analyses, *elsewhere}
    for name in having:
        (option,) = (option for option in FOUND[name].params if "--json" in option.opts)
        assert option.is_flag, name


@pytest.mark.parametrize("name", COMMANDS)
def test_stdout_is_one_document(name, place):
    done = ask(place, *shlex.split(COMMANDS[name]), "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    assert isinstance(document, dict) and document
    if name == "recipe list":
        mean = {"name": "baselines/mean", "model": "nano", "description": "Mean-pooling baseline"}
        assert mean in document["recipes"]
    if name == "cache":
        assert isinstance(document["kept"], list) and document["deleted"] is False


def test_an_error_leaves_stdout_empty(place):
    done = ask(place, "table", "nowhere", "--json")
    assert (done.exit_code, done.stdout) == (1, "") and "nowhere" in done.stderr


def test_numbers_and_texts_are_those_of_the_table(place):
    document = json.loads(ask(place, "table", "results", "two=results-2", "--json").stdout)
    assert [model["model"] for model in document["models"]] == ["results", "two"]
    assert document["models"][0]["seeds"] == [{"averages": {}, "tasks": {"sts test, 2 pairs": 0.5}}]
    document = json.loads(ask(place, "context", "list", "encoder", "--json").stdout)
    assert document == {
        "contexts": [{"context": "task", "demonstrations": 1, "positions": 10, "instruction": "Find: "}]
    }


def test_rows_are_shown_as_text_and_never_as_python():
    from embrew.data import row_text

    row = {"query": 'a "b"', "positive": "c", "negatives": ["d", "ß"], "score": 1.5, "instruction": None, "more": []}
    assert row_text(row) == r'query: "a \"b\""; positive: "c"; negatives: "d", "ß"; score: 1.5'
