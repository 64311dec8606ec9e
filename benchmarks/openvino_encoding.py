"""Encoding in OpenVINO: float32, bfloat16 and int8 against Sentence-Transformers, our torch and ONNX Runtime."""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from harness import Bar, Benchmark, Outcome
from models import minilm, save_llama
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from embrew.data.datasets import load
from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.export.parts import Int8
from embrew.model.batching import plan
from embrew.runtimes.folder import open_openvino
from embrew.storage.base_model import computes

BATCH_TOKENS = 2_048
CALIBRATION = 64  # texts
EXACT = 1 - 1e-5  # smallest cosine of a side in float32
PEER = "Sentence-Transformers fp32"
Side = Callable[[], np.ndarray]


# ---- models and texts ----------------------------------------------------------------------------------------------


def nano(place: Path) -> Encoder:
    """The model that embrew ships."""
    return Encoder.from_pretrained("nano", pooling="mean", dtype="float32", device="cpu")


def llama768(place: Path) -> Encoder:
    """12 random Llama layers of width 768, as large as BERT base, with nano's tokenizer."""
    save_llama(place / "llama", width=768, inner=2048, layers=12, heads=12)
    return Encoder.from_pretrained(place / "llama", pooling="mean", dtype="float32", device="cpu", max_length=512)


def sentences(pairs: int) -> tuple[list[str], np.ndarray, tuple[str, ...]]:
    """Both sides of pairs of STS-B dev, their scores, and other sentences to calibrate with."""
    folder = os.environ.get("EMBREW_DATA")
    if not folder:
        raise harness.Missing("EMBREW_DATA names no folder of data")
    rows = list(load(Path(folder) / "STSB", kind="scored", split="dev", max_rows=pairs + CALIBRATION, shuffle_seed=0))
    measured, others = rows[:pairs], rows[pairs:]
    texts = [row["sentence1"] for row in measured] + [row["sentence2"] for row in measured]
    return texts, np.array([row["score"] for row in measured]), tuple(row["sentence1"] for row in others)


# ---- the sides -----------------------------------------------------------------------------------------------------


class OnnxRuntime:
    """An exported graph in ONNX Runtime, in batches as ours are."""

    def __init__(self, folder: Path, file: Path) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def encode(self, texts: list[str]) -> np.ndarray:
        """Return vectors in the order of the texts."""
        rows = [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        found: list[Any] = [None] * len(rows)
        for batch in plan([len(row) for row in rows], batch_size=32, batch_tokens=BATCH_TOKENS):
            width = max(len(rows[i]) for i in batch)
            ids = np.array([rows[i] + [0] * (width - len(rows[i])) for i in batch])
            mask = np.array([[1] * len(rows[i]) + [0] * (width - len(rows[i])) for i in batch])
            vectors = self.session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
            for i, vector in zip(batch, vectors, strict=True):
                found[i] = vector
        return np.stack(found)


def sides(encoder: Encoder, place: Path, texts: list[str], calibration: tuple[str, ...]) -> dict[str, Side]:
    """Return every way to encode the texts, by name; the first is the reference."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    half = computes(torch.bfloat16, torch.device("cpu"))
    export_encoder(encoder, place / "stock", runtimes=["sentence-transformers", "onnx"], verify="off")
    forms = {"fp32": ("fp32", None), "int8": ("int8", Int8()), "int8 calibrated": ("int8", Int8(texts=calibration))}
    for name, (weights, int8) in forms.items():
        export_encoder(encoder, place / name, runtimes=["openvino"], weights=weights, int8=int8, verify="off")
    graph, small = place / "stock" / "onnx" / "model.onnx", place / "int8.onnx"
    quantize_dynamic(graph, small, weight_type=QuantType.QInt8)
    ours = {"our fp32": encoder}
    if half:
        encoder.save_pretrained(place / "saved", verify="off")
        ours["our bf16"] = Encoder.from_pretrained(place / "saved", dtype="bfloat16", device="cpu")
    ours |= {f"OpenVINO {name}": open_openvino(place / name) for name in forms}
    if half:
        ours["OpenVINO bf16"] = open_openvino(place / "fp32", dtype="bfloat16")
    peers = {"Sentence-Transformers fp32": torch.float32} | (
        {"Sentence-Transformers bf16": torch.bfloat16} if half else {}
    )
    made: dict[str, Side] = {
        name: partial(model.encode, texts, batch_tokens=BATCH_TOKENS, show_progress_bar=False)
        for name, model in ours.items()
    }
    for name, dtype in peers.items():
        stock = SentenceTransformer(
            str(place / "stock"),
            device="cpu",
            trust_remote_code=False,
            model_kwargs={"dtype": dtype, "use_safetensors": True},
        )
        made[name] = partial(stock.encode, texts, batch_size=32, show_progress_bar=False)
    made["ONNX Runtime fp32"] = partial(OnnxRuntime(place / "stock", graph).encode, texts)
    made["ONNX Runtime dynamic int8"] = partial(OnnxRuntime(place / "stock", small).encode, texts)
    return made


# ---- the measurement -----------------------------------------------------------------------------------------------


def run(
    benchmark: Benchmark, *, make: Callable[[Path], Encoder], pairs: int, bars: dict[tuple[str, str], Bar], rounds: int
) -> Outcome:
    """Time all sides in turn, and put cosine and Spearman beside every ratio."""
    if find_spec("openvino") is None or find_spec("onnxruntime") is None:
        raise harness.Missing("OpenVINO or ONNX Runtime is not installed")
    texts, gold, calibration = sentences(pairs)
    with tempfile.TemporaryDirectory(prefix="embrew-bench-") as scratch:
        made = sides(make(Path(scratch)), Path(scratch), texts, calibration)
        vectors = {name: np.asarray(side(), dtype=np.float32) for name, side in made.items()}
        cosines = {name: (found * vectors["our fp32"]).sum(-1) for name, found in vectors.items()}
        for name, found in cosines.items():
            if name.endswith("fp32") and not found.min() >= EXACT:
                raise harness.Unequal(f"{name}: smallest cosine {found.min():.6f}, {EXACT} is needed")
        gc.collect()
        load = os.getloadavg()[0]
        compared = [pair for pair in bars if set(pair) <= made.keys()]
        turns = harness.take_turns(made, compared, rounds=rounds)
        load = max(load, os.getloadavg()[0])
    notes: dict[str, Any] = {"load of the machine, at most": load}
    notes |= {f"version of {name}": version(name) for name in ("openvino", "nncf", "onnxruntime")}
    for name, found in cosines.items():
        score = spearmanr((vectors[name][:pairs] * vectors[name][pairs:]).sum(-1), gold).statistic
        seconds = statistics.median(one[name].wall for one in turns.rounds)
        notes[name] = (
            f"{seconds:.2f} s, {ratio(turns, 'our bf16', name):.2f} × our bf16, {ratio(turns, PEER, name):.2f} × "
            f"{PEER}, mean cosine {found.mean():.5f}, smallest {found.min():.5f}, Spearman {100 * score:.2f}"
        )
    measures = [turns.measure(f"{ours} against {peer}", ours, peer, bars[ours, peer], "s") for ours, peer in compared]
    equality = {f"1 - smallest cosine, {name}": float(1 - found.min()) for name, found in cosines.items()}
    return Outcome(equality=equality, measures=measures, notes=notes)


def ratio(turns: harness.Turns, peer: str, ours: str) -> float:
    """Return the median of peer ÷ ours over the rounds."""
    if peer not in turns.work:
        return float("nan")
    return statistics.median(one[peer].wall / one[ours].wall for one in turns.rounds)


REPORTED = Bar(gate=1.0, target=1.25)
FORMS = ("OpenVINO bf16", "OpenVINO int8", "OpenVINO int8 calibrated")


def bars(ours: Bar, peer: Bar) -> dict[tuple[str, str], Bar]:
    """Return the bars of each form against our bfloat16 and the peer's float32."""
    return {(form, other): bar for form in FORMS for other, bar in (("our bf16", ours), (PEER, peer))}


BENCHMARKS = (
    Benchmark(
        name="encode-openvino-nano",
        title="nano, mean of all tokens, sentences of STS-B dev: OpenVINO and its peers, one thread.",
        run=partial(run, make=nano, pairs=128, bars=bars(REPORTED, REPORTED), rounds=harness.ROUNDS),
    ),
    Benchmark(
        name="encode-openvino-minilm",
        title="all-MiniLM-L6-v2, sentences of STS-B dev: OpenVINO and its peers, one thread.",
        run=partial(
            run,
            make=lambda place: minilm(),
            pairs=128,
            bars=bars(Bar(gate=1.25, target=1.25), REPORTED),
            rounds=harness.ROUNDS,
        ),
    ),
    Benchmark(
        name="encode-openvino-llama768",
        title="12 random Llama layers of width 768, sentences of STS-B dev: OpenVINO and its peers, one thread.",
        run=partial(
            run, make=llama768, pairs=32, bars=bars(Bar(gate=1.5, target=1.5), Bar(gate=3, target=3)), rounds=5
        ),
    ),
)
