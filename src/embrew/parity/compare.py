"""Compare a runtime with an encoder or export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embrew.encoder import Encoder
from embrew.parity import Kind
from embrew.parity.causes import Verdict, verdict_of
from embrew.parity.expected import Reference, export_around, reference_of_encoder, reference_of_export
from embrew.parity.measuring import Measurements, measure_runtime
from embrew.parity.servers import EmbrewServer, open_server
from embrew.progress import progress
from embrew.runtimes.registry import RUNTIMES
from embrew.runtimes.runtime import OpenedModel, OpenedRuntime
from embrew.storage.base_model import quiet

STOCK = "sentence-transformers"
FILES: dict[str, tuple[str, ...]] = {
    "embrew": ("embrew.json", "run.json"),
    **{name: runtime.files for name, runtime in RUNTIMES.items() if runtime.files},
}
"""Files by which a folder or file is known; of an export for several runtimes, Sentence-Transformers first."""
MIN_COSINE = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.999}
"""By type of the weights, below the lowest in `benchmarks/results/llama-cpp-parity.md`: 0.9999986, 0.999995, 0.9991."""
MIN_COSINE_OF_OTHERS = 0.99  # of quantised weights: int8, q8_0 (lowest there: 0.9975)


def open_folder(name: str, *, kind: Kind | None) -> OpenedRuntime:
    """Open a folder or file.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is of no kind, or cannot be opened.
    """
    path = Path(name)
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {name}; give one, or an address that begins with http://")
    if kind is not None and kind not in FILES:
        raise ValueError(f"--kind {kind} is a server, and {name} is no address; give http://HOST:PORT")
    for candidate, patterns in FILES.items() if kind is None else ((kind, FILES[kind]),):
        if path.is_file():
            files = [path] if kind or any(path.match(pattern) for pattern in patterns) else []
        else:
            files = [file for pattern in patterns for file in sorted(path.glob(pattern))]
        if files or kind == STOCK:
            return _open(path, candidate, files)
    expected = "a folder of Sentence-Transformers, embrew or OpenVINO, a .gguf or .onnx file, or an address"
    what = f"has no {' or '.join(FILES[kind])}" if kind else "is nothing that vectors can be compared with"
    raise ValueError(f"{path} {what}; give {expected}")


def _open(path: Path, kind: str, files: list[Path]) -> OpenedRuntime:
    if kind == "embrew":
        # Learned tokens have other ids than in an export, so that ids are not compared.
        return OpenedModel(path, Encoder.from_pretrained(path, merge_adapter=True), "embrew")
    open_files = RUNTIMES[kind].open
    assert open_files is not None  # it has files
    if kind == STOCK:
        return open_files(path)
    if len(files) > 1:
        raise ValueError(f"{path} has {', '.join(file.name for file in files)}; give one file")
    return open_files(files[0])


@dataclass(frozen=True)
class ConditionLine:
    """The vectors of one condition, compared with the reference.

    Attributes:
        condition: name of the way in which texts were sent.
        prompt: name of the prompt; "" without one.
        texts: number of texts.
        mean: mean of the cosines; None: the runtime refused all texts.
        lowest: lowest of the cosines.
        difference: largest difference of a number.
    """

    condition: str
    prompt: str
    texts: int
    mean: float | None = None
    lowest: float | None = None
    difference: float | None = None


@dataclass(frozen=True)
class ParityResult(Verdict):
    """What a comparison measured, and its verdict; `dataclasses.asdict` gives what `--json` prints.

    Attributes:
        reference: name of the encoder or export.
        runtime: name of the runtime.
        min_cosine: cosine that every text has to reach.
        assumed_weights: type of the weights that it follows from; None: the user gave it.
        token_ids: number of texts whose token ids were compared, and of those with other ids.
        conditions: one line per condition and prompt.
    """

    reference: str
    runtime: str
    min_cosine: float
    assumed_weights: str | None
    token_ids: dict[str, int]
    conditions: list[ConditionLine]


def compare(
    a: str,
    against: str,
    *,
    kind: Kind | None = None,
    model: str | None = None,
    timeout: float = 60.0,
    min_cosine: float | None = None,
    max_length: int | None = None,
    pooling: str | None = None,
    show_progress_bar: bool = False,
) -> ParityResult:
    """Compare the vectors of a runtime with those of an encoder or export, and name the cause of a difference.

    Args:
        a: an encoder, as `open_model` takes it, or folder of an export with `parity.json`, whose model is not opened.
        against: the runtime: a folder of Sentence-Transformers, embrew or OpenVINO, a file `.gguf` or `.onnx`, or the
            address of a server.
        kind: of the runtime; None: by its name and what is there.
        model: name of the model on a server of several.
        timeout: seconds to wait for an answer of a server.
        min_cosine: cosine that every text has to reach; None: by the weights, 0.9999 to 0.99.
        max_length: limit in tokens of the runtime, where the encoder has two; None: that of the export.
        pooling: of a language model without embedding settings, as `open_model` takes it.
        show_progress_bar: show one.

    Raises:
        FileNotFoundError: no such file, folder or model.
        ValueError: there are no reference vectors, or the runtime gives no vectors; the message says why.
    """
    if min_cosine is not None and not 0 < min_cosine <= 1:
        raise ValueError(f"min_cosine={min_cosine}; give a cosine above 0, at most 1")
    with quiet():
        reference = reference_of_export(a)
        if reference is not None and (max_length or pooling):
            raise ValueError(f"{a} is an export, whose vectors are known; leave out max_length and pooling")
        if against.lower().startswith(("http://", "https://")):
            runtime: OpenedRuntime = open_server(against, kind=kind, model=model, timeout=timeout)
        else:
            runtime = open_folder(against, kind=kind)
        around = export_around(Path(against))
        if reference is None:
            limit, by_methods = max_length or around.get("max_length"), isinstance(runtime, EmbrewServer)
            reference = reference_of_encoder(a, by_methods=by_methods, max_length=limit, pooling=pooling)
    weights = None
    if min_cosine is None:
        weights, min_cosine = _tolerance(reference, runtime, around.get("runtimes", {}))
    with progress(None, "compare", "text", show=show_progress_bar) as bar:
        measurements = measure_runtime(runtime, reference, min_cosine=min_cosine, progress=bar.update)
    return ParityResult(
        **vars(verdict_of(measurements)),
        reference=reference.name,
        runtime=runtime.name,
        min_cosine=min_cosine,
        assumed_weights=weights,
        token_ids={"compared": measurements.compared_ids, "different": len(measurements.other_ids)},
        conditions=_lines(measurements),
    )


def _tolerance(reference: Reference, runtime: OpenedRuntime, around: dict[str, str]) -> tuple[str, float]:
    """Return the least precise weights which the runtime may run, or the encoder has, and the cosine for them.

    Args:
        reference: the encoder or export; says which weights its files have.
        runtime: says which of these files it may run.
        around: types of weights by runtime of the export that the runtime's file or folder is part of.
    """
    written = {**reference.weights, **around}
    types = {written[name] for name in runtime.reads if name in written} | ({"bf16"} if reference.is_bf16 else set())
    weights = min(sorted(types), key=lambda kind: MIN_COSINE.get(kind, MIN_COSINE_OF_OTHERS), default="fp32")
    min_cosine = MIN_COSINE.get(weights, MIN_COSINE_OF_OTHERS)
    if weights == "int8" and "openvino" in runtime.reads and reference.least_cosine is not None:
        min_cosine = min(min_cosine, reference.least_cosine)  # what its own export was verified with
    return weights, min_cosine


def _lines(measurements: Measurements) -> list[ConditionLine]:
    """Return one line per condition and prompt."""
    lines = []
    for condition in measurements.conditions.values():
        for part in condition.by_prompt():
            cosines, prompt = 1 - part.distances, part.texts[0].prompt
            shared = min(part.measured.shape[1], part.expected.shape[1])
            difference = float(np.abs(part.measured[:, :shared] - part.expected[:, :shared]).max())
            name = (prompt.name or "") if prompt.words else ""
            lines.append(
                ConditionLine(
                    condition.name, name, len(cosines), float(cosines.mean()), float(cosines.min()), difference
                )
            )
        if not condition.texts and condition.refused:
            lines.append(ConditionLine(condition.name, "", 0))
    return lines
