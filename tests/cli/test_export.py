"""`embrew export` says how each runtime opens what was written."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from embrew.cli import app

pytest.importorskip("openvino")


def test_other_vectors_are_an_error_without_a_traceback(model_folder, tmp_path, monkeypatch):
    def other_vectors(*_: object) -> None:
        raise RuntimeError("OpenVINO gives other vectors")

    monkeypatch.setattr("embrew.export.exporting.verify_runtime", other_vectors)
    result = CliRunner().invoke(
        app, ["export", str(model_folder("llama")), str(tmp_path / "out"), "--for=openvino", "--pooling=last"]
    )
    assert result.exit_code == 1 and "error: OpenVINO gives other vectors" in result.stderr
    assert not list(tmp_path.glob("*out*"))


def test_one_line_per_runtime(model_folder, tmp_path):
    out, targets = tmp_path / "out", ("openvino", "llama.cpp", "vllm", "tei")
    options = [f"--for={target}" for target in targets]
    result = CliRunner().invoke(
        app, ["export", str(model_folder("llama")), str(out), *options, "--verify", "off", "--pooling=last"]
    )
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()[1:]
    assert [line.partition(":")[0] for line in lines] == list(targets)
    assert str(out / "openvino" / "openvino_model.xml") in lines[0]
    assert f"-m {out / 'llama-F16.gguf'} --embeddings -c 512" in lines[1] and (out / "llama-F16.gguf").is_file()
    assert lines[2:] == [
        f"vllm: vllm serve {out} --dtype float32",
        f"tei: text-embeddings-router --model-id {out} --dtype float16",
    ]
