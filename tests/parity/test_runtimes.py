"""Folders and graphs of the same encoder are equal; two faults with the same vectors are both named."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from embrew.cli import app
from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.parity.causes import Verdict, verdict_of
from embrew.parity.compare import compare
from embrew.parity.expected import Reference, ReferenceText, WrongVectors
from embrew.parity.measuring import ALONE, LONG, Condition, Measurements
from embrew.passport.texts import CHOSEN
from embrew.runtimes.runtime import Prompt
from embrew.storage.base_model import ASSETS
from tests.conftest import by_default, stir
from tests.parity.faulty import FORMS, LIMIT, PROMPTS
from tests.parity.test_faults import named


def made_of(rows: np.ndarray, wrong: dict[str, np.ndarray], measured: np.ndarray) -> Verdict:
    """The verdict on vectors of five texts without a prompt."""
    keys = [("", text) for text in CHOSEN]
    prompt = Prompt(None, "", "encode", True, False)
    texts = [ReferenceText(prompt, text, [1, 2], row) for text, row in zip(CHOSEN, rows, strict=True)]
    reference = Reference("a", texts, 8, {}, False, None, WrongVectors(keys, wrong, ("", "long"), {}))
    conditions = {ALONE: Condition(ALONE, texts, list(measured)), LONG: Condition(LONG)}
    return verdict_of(Measurements(reference, 0.9999, conditions))


def test_a_cause_is_named_only_where_its_vectors_are_measured():
    draws = np.random.default_rng(0)
    right, one, two = (rows / np.linalg.norm(rows, axis=1)[:, None] for rows in draws.normal(size=(3, 5, 16)))
    faults = {"bos_missing": one, "eos_missing": one, "pooling_mean": two, "bos_doubled+pooling_mean": two}
    assert made_of(right, faults, right).equal
    both = made_of(right, faults, one)
    assert both.ambiguous and not both.equal
    assert both.verdict.startswith("different: ambiguous: BOS is missing or EOS, or the last token")
    assert [cause.faults for cause in made_of(right, faults, two).causes] == [["pooling_mean"]], "the simpler one"
    assert [cause.faults for cause in made_of(right, faults, 3 * two).causes] == [["pooling_mean"], ["norm"]]
    between = made_of(right, faults, two + 0.3 * one)
    assert not between.causes and "another model" in between.verdict
    near = made_of(right, {"bos_missing": right + 0.01 * one}, right + 0.01 * one)
    assert [cause.faults for cause in near.causes] == [["bos_missing"]], "within the tolerance, and clearly this fault"
    noise = made_of(right, {"bos_missing": right + 0.01 * one}, right + 0.01 * two)
    assert noise.equal


@pytest.mark.parametrize("form", by_default(["memory"], ["last", "memory"]))
def test_folders_of_the_same_encoder(form, model_folder, tmp_path):
    template = {"template": "{instruction}{text}{memory}"} if FORMS[form]["memory_tokens"] else {}
    settings = {"device": "cpu", "max_length": LIMIT, "prompts": PROMPTS, **template, **FORMS[form]}
    encoder = Encoder.from_pretrained(model_folder("llama"), **settings)
    encoder.backbone.add_lora({"r": 4, "lora_alpha": 8})
    stir(encoder.backbone)
    encoder.save_pretrained(tmp_path / "encoder", verify="off")
    export_encoder(encoder, tmp_path / "export", verify="off")
    assert compare(str(tmp_path / "encoder"), str(tmp_path / "export")).equal, "computed from the encoder"
    assert compare(str(tmp_path / "export"), str(tmp_path / "encoder")).equal
    stir(encoder.backbone, noise=0.2, seed=5)
    encoder.save_pretrained(tmp_path / "trained", verify="off")
    other = compare(str(tmp_path / "export"), str(tmp_path / "trained"))
    assert not other.equal and not named(other)


def test_an_encoder_with_two_limits(model_folder, tmp_path):
    settings = {"max_length": {"query": LIMIT - 4, "document": LIMIT}, "prompts": PROMPTS, **FORMS["last"]}
    encoder = Encoder.from_pretrained(model_folder("llama"), device="cpu", **settings)
    encoder.save_pretrained(tmp_path / "encoder", verify="off")
    place = tmp_path / f"export-{LIMIT - 4}"
    for limit in (LIMIT - 4, LIMIT):
        export_encoder(encoder, tmp_path / f"export-{limit}", max_length=limit, verify="off")
    arguments = ["parity", str(tmp_path / "encoder"), "--against", str(place)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0 and "equal: lowest cosine 1.000000" in done.output, "the limit is that of the export"
    assert compare(str(tmp_path / "encoder"), str(tmp_path / f"export-{LIMIT}")).equal
    (place / "parity.json").unlink()
    (place / "checksums.json").unlink()
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2 and "choose it with --max-length N" in done.output
    done = CliRunner().invoke(app, [*arguments, "--max-length", str(LIMIT - 4)])
    assert done.exit_code == 0 and "equal: lowest cosine 1.000000" in done.output
    with pytest.raises(ValueError, match="is an export, whose vectors are known"):
        compare(str(tmp_path / f"export-{LIMIT}"), str(tmp_path / "encoder"), max_length=LIMIT - 4)


def test_names_are_models_as_elsewhere(model_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(ASSETS, "nano", model_folder("llama"))  # which is smaller
    export_encoder(Encoder.from_pretrained("nano", pooling="mean"), tmp_path / "export", verify="off")
    for given in (["nano", "--pooling", "mean"], ["baselines/mean"]):
        done = CliRunner().invoke(app, ["parity", *given, "--against", str(tmp_path / "export")])
        assert done.exit_code == 0 and "equal: lowest cosine 1.000000" in done.output, done.output
    done = CliRunner().invoke(app, ["parity", "nano", "--against", str(tmp_path / "export")])
    assert done.exit_code == 2 and "has no pooling" in done.output
    done = CliRunner().invoke(app, ["parity", "no-such-model", "--against", str(tmp_path / "export")])
    assert done.exit_code == 2 and "model 'no-such-model' is not nano" in done.output


def test_the_command(make_encoder, tmp_path):
    encoder = make_encoder(lora={}, max_length=LIMIT, prompts=PROMPTS, **FORMS["last"])
    export_encoder(encoder, tmp_path / "export", verify="off")
    config = tmp_path / "export" / "1_Pooling" / "config.json"
    arguments = ["parity", str(tmp_path / "export"), "--against", str(tmp_path / "export")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0 and "equal: lowest cosine 1.000000" in done.output
    values = json.loads(config.read_text())
    config.write_text(json.dumps({**values, "pooling_mode": "mean", "pooling_mode_mean_tokens": True}))
    (tmp_path / "export" / "checksums.json").unlink()
    done = CliRunner().invoke(app, [*arguments, "--json", "-q"])
    found = json.loads(done.stdout)
    assert done.exit_code == 1
    assert found["causes"] == [{"faults": ["pooling_mean"], "words": "wrong pooling: the mean of all tokens"}]


@pytest.mark.slow
def test_graphs(make_encoder, tmp_path):
    pytest.importorskip("openvino")
    encoder = make_encoder(lora={}, max_length=LIMIT, prompts=PROMPTS, **FORMS["memory"])
    export_encoder(encoder, tmp_path / "export", verify="off", runtimes=["openvino"])
    found = compare(str(tmp_path / "export"), str(tmp_path / "export" / "openvino"))
    assert found.equal and found.token_ids["different"] == 0
    assert "OpenVINO" in found.runtime
    (tmp_path / "export" / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match="has no tokenizer.json beside it"):
        compare(str(tmp_path / "export"), str(tmp_path / "export" / "openvino" / "openvino_model.xml"))
    (tmp_path / "export" / "openvino" / "openvino_model.xml").write_text("<x/>")
    with pytest.raises(ValueError, match="OpenVINO cannot open"):
        compare(str(tmp_path / "export"), str(tmp_path / "export"))
