"""The measured overhead of a forward pass: with a stand-in for a GPU's clock, recorded, and kept when resumed."""

import json

import pyarrow.parquet as pq
import pytest
import torch

from embrew.corpus import encode_corpus
from embrew.corpus.layout import MANIFEST
from embrew.modeling.model import pass_overhead
from embrew.recipe import Recipe
from embrew.training.stages import train
from tests.conftest import SENTENCES
from tests.training.test_activation_memory import values


class Clock:
    """Runs a pass and says that it took `of_a_pass` + `per_token` · its tokens; counts the passes."""

    def __init__(self, of_a_pass: float, per_token: float = 1e-6) -> None:
        self.of_a_pass, self.per_token, self.passes = of_a_pass, per_token, 0

    def __call__(self, compute) -> float:
        tokens = compute.args[2]
        compute()
        self.passes += 1
        return self.of_a_pass + self.per_token * tokens.input_ids.numel()


@pytest.fixture
def clock(monkeypatch):
    def use(of_a_pass: float, per_token: float = 1e-6) -> Clock:
        made = Clock(of_a_pass, per_token)
        monkeypatch.setattr(pass_overhead, "seconds", made)
        monkeypatch.setattr(pass_overhead, "LENGTH", 32)
        monkeypatch.setattr(pass_overhead, "is_on_cuda", lambda _: True)
        return made

    return use


@pytest.mark.parametrize(
    ("of_a_pass", "per_token", "wanted"),
    [(700e-6, 1e-6, 512), (800e-6, 1e-6, 1024), (0.0, 1e-6, 1), (1.0, 1e-6, 8192), (1e-3, 0.0, 8192)],
)
def test_the_overhead_is_a_power_of_two(of_a_pass, per_token, wanted, clock, make_encoder):
    clock(of_a_pass, per_token)
    encoder = make_encoder("llama")
    assert encoder.cost.overhead == wanted


def test_measured_once_for_training_and_once_for_inference(clock, make_encoder):
    made = clock(100e-6)
    encoder = make_encoder("llama", lora={"lora_dropout": 0.2}).train()
    before = torch.get_rng_state()
    assert encoder.cost.overhead == encoder.cost.overhead == 128.0
    assert made.passes == 2 * pass_overhead.REPEATED
    made.of_a_pass = 30e-6
    assert encoder.eval().cost.overhead == 32.0 and encoder.train().cost.overhead == 128.0
    assert encoder.backbone.overheads == {"training": 128.0, "inference": 32.0}
    with encoder.backbone.frozen_lm() as lm:
        assert lm.cost.overhead in (128.0, 32.0)
    assert torch.equal(torch.get_rng_state(), before) and all(p.grad is None for p in encoder.parameters())


def test_a_batch_that_does_not_fit_is_halved(clock, make_encoder, monkeypatch):
    made, rows = clock(100e-6), []

    def fits(compute):
        rows.append(len(compute.args[2]))
        if rows[-1] > 4:
            raise torch.OutOfMemoryError
        return made(compute)

    monkeypatch.setattr(pass_overhead, "seconds", fits)
    assert make_encoder("llama").cost.overhead == 128.0
    assert rows == [1] * 4 + [16, 8] + [4] * 4


def test_not_measured_on_a_cpu_nor_with_full_determinism(clock, make_encoder, monkeypatch):
    encoder, derived = make_encoder("llama"), make_encoder("llama").cost
    made = clock(1.0)
    torch.use_deterministic_algorithms(True)
    try:
        encoder.cost  # noqa: B018
    finally:
        torch.use_deterministic_algorithms(False)
    monkeypatch.setattr(pass_overhead, "is_on_cuda", lambda device: device.type == "cuda")
    assert encoder.cost == derived and not encoder.backbone.overheads and not made.passes


def test_a_resumed_stage_keeps_the_recorded_overheads(model_folder, tmp_path, monkeypatch, clock):
    asked = Recipe.from_values(values(model_folder("llama"), tmp_path, training={"save_steps": 1, "max_steps": 2}))
    noted = {}

    class Killed(Exception):
        pass

    def killed(*_, **__):
        raise Killed

    clock(100e-6)
    with monkeypatch.context() as patched:
        patched.setattr("embrew.training.stages.StageTrainer.fit", killed)
        with pytest.raises(Killed):
            train(asked, tmp_path / "run")
    clock(1.0)
    for name, resume in (("run", True), ("anew", False)):
        encoder = train(asked, tmp_path / name, resume=resume)
        noted[name] = json.loads((tmp_path / name / "run.json").read_text())["pass_overheads"]["one"]
        assert encoder.backbone.overheads == noted[name]
    assert noted["run"] == {"training": 128.0, "inference": 128.0}
    assert noted["anew"] == {"training": 8192.0, "inference": 8192.0}


def test_a_resumed_corpus_keeps_the_recorded_overhead(make_encoder, tmp_path, clock, monkeypatch):
    lines = [json.dumps({"id": i, "text": text * (1 + i % 5)}) for i, text in enumerate(SENTENCES * 3)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))

    def content(name, **how):
        encode_corpus(make_encoder("llama"), tmp_path / "corpus.jsonl", tmp_path / name, shard_rows=7, **how)
        files = (path for path in (tmp_path / name).rglob("*") if path.is_file())
        return {path.relative_to(tmp_path / name).as_posix(): path.read_bytes() for path in files}

    clock(4e-6)
    wanted = content("whole")
    with monkeypatch.context() as patched:
        written = []
        write = pq.write_table

        def killed(*args, **options):
            if len(written) == 2:
                raise KeyboardInterrupt
            written.append(write(*args, **options))

        patched.setattr(pq, "write_table", killed)
        with pytest.raises(KeyboardInterrupt):
            content("stopped")
    made = clock(1.0)
    assert content("stopped") == wanted and not made.passes
    recorded = json.loads((tmp_path / "stopped" / MANIFEST).read_text())["run"]["pass_overhead"]
    assert recorded == 4.0
    content("anew")
    assert json.loads((tmp_path / "anew" / MANIFEST).read_text())["run"]["pass_overhead"] == 8192.0
