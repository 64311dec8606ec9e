"""The checker without embrew: it accepts the model, names faults of a server, and refuses damaged files."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embrew import check_passport
from embrew.check_passport import Passport, check, main, read_safetensors, requests, server
from embrew.encoder import Encoder
from embrew.passport.making import make_passport, write_passport
from tests.conftest import by_default, stir
from tests.parity.faulty import FORMS, LIMIT, PROMPTS, THREE_PROMPTS, FaultyRuntime
from tests.parity.servers import ADDRESSES, serving

FAULTS = {
    "": set(),
    "bos missing": {"bos_missing"},
    "bos doubled": {"bos_doubled"},
    "no special tokens": {"bos_missing+eos_missing"},
    "prompt missing": {"prompt_missing"},
    "prompt added": {"prompt_added_query"},
    "mean, not normalised": {"pooling_mean", "norm"},
    "bidirectional": {"attention_bidirectional"},
    "not normalised": {"norm"},
    "truncated at 64": {"truncated_64"},
    "half the dimensions": {"dimensions"},
}
QUICK = ("", "bos missing", "truncated at 64")


@pytest.fixture
def passport(exported, tmp_path) -> Path:
    """The passport of an export of the last token's state, copied alone."""
    for name in (check_passport.FILE, check_passport.TENSORS):
        (tmp_path / name).write_bytes((exported("last") / name).read_bytes())
    return tmp_path


@pytest.mark.parametrize("fault", by_default(QUICK, FAULTS))
def test_a_fault_of_a_server_is_named(fault, exported, passport):
    kind = ("openai", "tei", "ollama")[list(FAULTS).index(fault) % 3]
    with serving(FaultyRuntime(exported("last"), fault), only=(kind,)) as address:
        result = check(Passport.read(passport), server(address + ADDRESSES[kind]))
    assert set(result.faults) == FAULTS[fault], result.verdict
    assert result.equal == (not fault) and not result.ambiguous


def test_it_runs_alone(exported, passport):
    """With the standard library and numpy only, in an interpreter that cannot import embrew."""
    script = passport / "check_passport.py"
    script.write_bytes(Path(check_passport.__file__).read_bytes())
    command = [sys.executable, "-I", str(script), str(passport / "passport.json")]
    texts = [json.loads(line) for line in subprocess.check_output([*command, "--texts"], text=True).splitlines()]
    runtime = FaultyRuntime(exported("last"), "eos missing")
    np.save(passport / "wrong.npy", np.stack([runtime.vector(text) for text in texts]))
    done = subprocess.run(
        [*command, str(passport / "wrong.npy"), "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["faults"] == ["eos_missing"]
    assert "embrew" not in {
        line.split()[1].split(".")[0] for line in script.read_text().splitlines() if line[:5] == "from "
    }


def test_sides(make_encoder, tmp_path):
    """An endpoint that applies a prompt itself; without it, and with that of the other side."""
    encoder = make_encoder(lora={}, max_length=LIMIT, prompts=THREE_PROMPTS, **FORMS["last"])
    write_passport(make_passport(encoder, name="tiny"), tmp_path)
    passport = Passport.read(tmp_path)
    for prompt in ("query", "document", "title", ""):
        named = {"prompt_name": prompt} if prompt else {"prompt": ""}
        assert check(passport, lambda texts, named=named: encoder.encode(texts, **named), prompt=prompt).equal
    assert check(passport, lambda texts: encoder.encode(texts, prompt=""), prompt="query").faults == ["prompt_missing"]
    other = check(passport, encoder.encode_document, prompt="query")
    assert other.faults == ["prompt_other_document"] and "'document'" in other.verdict
    assert check(passport, lambda texts: encoder.encode(texts, prompt="")).equal, "prompts as words"
    assert check(passport, encoder.encode_query, prompt="document").faults == ["prompt_other_query"]
    with pytest.raises(ValueError, match="prompt 'none'; the passport has 'query', 'document'"):
        requests(passport, "none")


def test_the_adapter_and_the_weights(make_encoder, tmp_path):
    """Oracles: peft's own switch and scale, and weights that are rounded in place."""
    encoder = make_encoder(lora={}, max_length=LIMIT, prompts=PROMPTS, **FORMS["last"])
    write_passport(make_passport(encoder, name="tiny"), tmp_path)
    passport = Passport.read(tmp_path)

    def named() -> list[str]:
        return check(passport, encoder.encode_query, prompt="query").faults

    with encoder.backbone.adapter_off():
        assert named() == ["adapter_missing"]
    layers = [module for module in encoder.modules() if hasattr(module, "lora_A")]
    for layer in layers:
        layer.scaling = {name: 2 * scale for name, scale in layer.scaling.items()}
    assert named() == ["adapter_doubled"]
    for layer in layers:
        layer.scaling = {name: scale / 2 for name, scale in layer.scaling.items()}
        weight = layer.get_base_layer().weight.data
        blocks = weight.view(len(weight), -1, 32)
        scale = blocks.abs().amax(-1, keepdim=True) / 7
        weight.copy_(((blocks / scale).round() * scale).view_as(weight))
    assert named() in (["quantised_4bit"], ["quantised"])


def test_saved_and_merged_encoders_have_the_same_faults(model_folder, tmp_path):
    settings = {"device": "cpu", "max_length": LIMIT, "prompts": PROMPTS, **FORMS["one-memory"]}
    encoder = Encoder.from_pretrained(model_folder("llama"), template="{instruction}{text}{memory}", **settings)
    encoder.backbone.add_lora({"r": 4, "lora_alpha": 8})
    stir(encoder.backbone)
    encoder.save_pretrained(tmp_path / "encoder")
    saved = Passport.read(tmp_path / "encoder")
    assert check(saved, encoder.encode_query, prompt="query").equal
    encoder.merge_adapter()
    _, tensors = make_passport(encoder, name="merged")
    for fault in ("adapter_missing", "adapter_doubled"):
        name = f"wrong.query.{fault}"
        assert np.abs(tensors[name].astype(np.float32) - saved.tensors[name]).max() < 1e-3


def test_honest_servers(make_encoder, tmp_path):
    encoder = make_encoder(lora={}, max_length=LIMIT, prompts=PROMPTS, **FORMS["mean"])
    write_passport(make_passport(encoder, name="tiny"), tmp_path)
    passport = Passport.read(tmp_path)
    for size in (1, 3, 64):
        assert check(passport, encoder.encode_query, prompt="query", batch_size=size).equal
    encoder.merge_adapter()
    short = check(passport, encoder.bfloat16().encode_query, prompt="query")
    assert short.equal and short.verdict == "equal: within the tolerance of float16"
    draws = np.random.default_rng(0)
    unknown = check(passport, lambda texts: draws.normal(size=(len(texts), 32)), prompt="query")
    assert "other_model" in unknown.faults


def test_damaged_files(passport):
    tensors = (passport / "passport.safetensors").read_bytes()
    about = json.loads((passport / "passport.json").read_text())

    def problem(**changed: object) -> str:
        (passport / "passport.json").write_text(json.dumps({**about, **changed}))
        with pytest.raises(ValueError, match="is no valid passport") as caught:
            Passport.read(passport)
        return str(caught.value)

    assert "format 99, and this checker reads format 1" in problem(format=99)
    assert "is not the one" in problem(sha256="0")
    assert "no tolerance" in problem(allowed=[])
    assert "for 1 texts" in problem(prompts={"query": {**about["prompts"]["query"], "texts": [0]}}, wrong=[])
    for end in (4, 100, len(tensors) - 10):
        with pytest.raises(ValueError, match=r"safetensors|within the file|Unterminated|Expecting"):
            read_safetensors(tensors[:end])
    huge = json.dumps({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}}).encode()
    with pytest.raises(ValueError, match="a is not within the file"):
        read_safetensors(struct.pack("<Q", len(huge)) + huge + b"12345678")
    assert main([str(passport / "none.json")]) == 2


def test_an_address_that_is_no_server(passport, capsys):
    assert main([str(passport), "http://127.0.0.1:1"]) == 2
    with pytest.raises(ValueError, match="give http"):
        server("file:///etc/passwd")
    (passport / "x.npy").write_bytes(b"")
    assert main([str(passport), str(passport / "x.npy")]) == 2
    capsys.readouterr()
