import json

import numpy as np
import pytest
from typer.testing import CliRunner

from embrew.cli import app
from embrew.encoder import Encoder
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration, Demonstrations
from tests.conftest import SENTENCES


def run(*arguments):
    return CliRunner().invoke(app, ["context", *map(str, arguments)], env={"COLUMNS": "160"})


@pytest.fixture
def model(model_folder, tmp_path):
    encoder = Encoder.from_pretrained(
        model_folder("llama"), device="cpu", template="{instruction}{text}{eos}", demonstrations=Demonstrations()
    )
    encoder.save_pretrained(tmp_path / "model", verify="off")
    return tmp_path / "model"


@pytest.fixture
def demos(tmp_path):
    path = tmp_path / "demos.jsonl"
    rows = [{"query": f"question {i}", "response": text} for i, text in enumerate(SENTENCES)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_add_list_remove(model, demos):
    assert run("list", model).stdout == "no contexts\n"
    added = run("add", model, "medical-faq", "--instruction", "Find the answer: ", "--demos", demos)
    assert added.exit_code == 0, added.stderr
    assert f"medical-faq: {len(SENTENCES)} demonstrations in" in added.stdout
    listed = run("list", model).stdout.splitlines()
    assert listed[1].split()[:2] == ["medical-faq", str(len(SENTENCES))]
    assert listed[1].endswith("'Find the answer: '")
    encoder = Encoder.from_pretrained(model, device="cpu")
    pairs = tuple(Demonstration(f"question {i}", SENTENCES[i]) for i in range(len(SENTENCES)))
    encoder.add_context("own", Context("Find the answer: ", pairs))
    found, wanted = (encoder.encode(SENTENCES, prompt_name=name) for name in ("medical-faq", "own"))
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    again = run("add", model, "medical-faq", "--instruction", "Other: ")
    assert again.exit_code == 1
    assert "has a context medical-faq already" in again.stderr
    assert run("add", model, "medical-faq", "--instruction", "Other: ", "--overwrite").exit_code == 0
    assert "0" in run("list", model).stdout.splitlines()[1].split()
    assert run("remove", model, "medical-faq").stdout == "removed medical-faq\n"
    assert run("list", model).stdout == "no contexts\n"
    assert run("remove", model, "medical-faq").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "MODEL", "a/b", "--instruction", "x"], "a name is letters, digits"),
        (["add", "MODEL", "name"], "nothing to add; give --instruction, --demos FILE, or both"),
        (["add", "MODEL", "name", "--demos", "DEMOS"], "has no instruction; give --instruction"),
        (["add", "MODEL", "name", "--instruction", "x", "--demos", "no/file.csv"], "no file or folder no/file.csv"),
        (["list", "no/model"], "no/model has no embrew.json"),
        (["remove", "no/model", "name"], "no/model has no embrew.json"),
    ],
)
def test_mistakes(arguments, message, model, demos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*({"MODEL": model, "DEMOS": demos}.get(one, one) for one in arguments))
    assert result.exit_code == 1
    assert message in result.stderr
    *before, error = result.stderr.splitlines()
    assert error.startswith("error: ")
    assert all(line.startswith("loading ") for line in before)


def test_an_encoder_that_reads_no_demonstrations_says_so(model_folder, tmp_path, demos):
    Encoder.from_pretrained(model_folder("llama"), device="cpu").save_pretrained(tmp_path / "plain", verify="off")
    result = run("add", tmp_path / "plain", "name", "--instruction", "x", "--demos", demos)
    assert result.exit_code == 1
    assert "does not read demonstrations" in result.stderr
