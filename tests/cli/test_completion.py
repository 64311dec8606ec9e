"""What the shell completes, as bash asks for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from embrew.cli import app
from embrew.recipe import list_recipes


def bash(line: str) -> dict[str, str]:
    """The environment in which bash asks for the last word of a line."""
    return {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_EMBREW_COMPLETE": "complete_bash"}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("embrew ru", ["runs"]),
        ("embrew in", ["into-space"]),
        ("embrew into-space m --te", ["--teacher"]),
        ("embrew adapt m --into", []),
        ("embrew train llm2comp/n", ["llm2comp/nano", "llm2comp/nano-wiki"]),
        ("embrew evaluate m --suite st", ["sts"]),
        ("embrew data fetch nli", ["nli-triplets"]),
        ("embrew data fetch papers/ese-", ["papers/ese-rag"]),
        ("embrew table results --suite qu", ["quick"]),
        ("embrew train r --sweep lbr/", ["lbr/ratio", "lbr/share", "lbr/share-100k", "lbr/stages"]),
        ("embrew data fetch bge", ["bge-en-icl"]),
        ("embrew recipe copy launch/", ["launch/ddp", "launch/fsdp2", "launch/ray-serve", "launch/zero2"]),
        ("embrew train launch/", []),
        ("embrew context remove model f", ["foxes"]),
        ("embrew evaluate model --context ", ["foxes"]),
        ("embrew analyze sink model --prompt-name f", ["foxes"]),
        ("embrew serve model --default-prompt-name ", ["foxes"]),
        ("embrew serve llm2comp/n", ["llm2comp/nano", "llm2comp/nano-wiki"]),
        ("embrew context remove run ", []),
        ("embrew train no-such", []),
        ("embrew train llm2comp/nano --res", ["--resume"]),
    ],
)
def test_names_are_completed(line, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in ("model", "run/one"):
        (tmp_path / place / "contexts" / "foxes").mkdir(parents=True)
        (tmp_path / place / "contexts" / "foxes" / "context.json").touch()
    done = CliRunner().invoke(app, [], env=bash(line), prog_name="embrew")
    assert done.exit_code == 0 and done.stdout.split() == found


def test_completion_is_quick():
    """In a process of its own, as in a shell: without torch, and all recipes are offered."""
    command = [sys.executable, "-X", "importtime", "-m", "embrew"]
    done = subprocess.run(command, env={**os.environ, **bash("embrew recipe check ")}, capture_output=True, check=True)
    assert done.stdout.decode().split() == list_recipes()
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert "embrew.cli.completion" in imported
    assert not {"torch", "transformers", "datasets", "numpy", "pyarrow"} & imported
