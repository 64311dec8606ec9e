"""Open an export in a process that has imported nothing of embrew, and compare what the runtime makes of its texts."""

from __future__ import annotations

import json
import logging
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from embrew.check_passport import distances
from embrew.runtimes.reference import Parity
from embrew.runtimes.runtime import INSTALLED_ONLY, Runtime
from embrew.storage.parts import first_difference, open_tokenizer

logger = logging.getLogger(__name__)
Answer = tuple[list[int] | None, list[float] | None]  # token ids and vector of a text, as `Runtime.script` gives them
PROLOGUE = """
import json
folder, out, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
parity = json.load(open(folder + "/parity.json", encoding="utf-8"))
batch_size = max(1, min(8, 16384 // parity["max_length"]))
"""
EPILOGUE = """
def answers(case):
    texts = [text["text"] for text in case["texts"]]
    batches = [texts[:1], *(texts[i : i + batch_size] for i in range(1, len(texts), batch_size))]
    return [[ids, None if vector is None else list(map(float, vector))]
            for batch in batches for ids, vector in encode(case, batch)]
json.dump({"version": version, "cases": [answers(case) for case in parity["cases"]]}, open(out, "w"))
"""


def verify_runtime(runtime: Runtime, out: Path, parity: Parity, device: str) -> dict[str, str | float | None]:
    """Open a folder as a runtime does, in a fresh process, and compare token ids and vectors of all reference texts.

    The first text of each prompt comes alone, the others in padded batches.

    Args:
        runtime: runtime that opens the folder.
        out: the folder.
        parity: content of its `parity.json`.
        device: device on which runtimes that have a choice compute.

    Returns:
        What was run and compared, for `parity.json`.

    Raises:
        RuntimeError: the runtime would refuse the folder, cannot open it, or gives other token ids or vectors.
    """
    python = runtime.python()
    if python is None:
        logger.warning("%s was not run, since it is not installed; its vectors are not compared", runtime.title)
        return {"run": None}
    try:
        options = {"device": device, "threads": torch.get_num_threads(), **runtime.options(out, parity)}
    except ValueError as error:
        raise RuntimeError(f"{runtime.title} would refuse the folder: {error}") from error
    code = INSTALLED_ONLY + PROLOGUE + runtime.script + EPILOGUE
    with tempfile.TemporaryDirectory(prefix="embrew-export-") as scratch:
        target = Path(scratch) / "answers.json"
        command = [python, "-c", code, str(out), str(target), json.dumps(options)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            raise RuntimeError(f"{runtime.title} cannot open the exported folder:\n{process.stderr[-2000:]}")
        answers = json.loads(target.read_text())
    least = runtime.least_cosine(parity, parity["runtimes"][runtime.name])
    result = _compare(runtime.title, out, parity, answers["cases"], least)
    logger.info("%s %s: %s", runtime.title, answers["version"], result)
    return {"run": f"{runtime.title} {answers['version']}", **result}


def _compare(
    title: str, out: Path, parity: Parity, answers: Sequence[Sequence[Answer]], least: float | None
) -> dict[str, float]:
    """Raise unless ids are equal, and vectors by the tolerance or the least cosine; return what was compared."""
    similarities, largest, beyond = [], 0.0, 0
    for case, case_answers in zip(parity["cases"], answers, strict=True):
        for text, (ids, values) in zip(case["texts"], case_answers, strict=True):
            if values is None and (ids is None or len(text["ids"]) == parity["max_length"]):
                beyond += ids is not None
                continue
            assert ids is not None  # only together with the vector
            prompt = "no prompt" if case["prompt_name"] is None else f"prompt {case['prompt_name']}"
            what = f"for {text['text'][:40]!r} ({prompt}, {case['method']})"
            if ids != text["ids"]:
                where = first_difference(text["ids"], ids, open_tokenizer(out))
                raise RuntimeError(
                    f"{title} gives other token ids {what}: {len(ids)} instead of {len(text['ids'])}; {where}"
                )
            if values is None:
                raise RuntimeError(f"{title} gives no vector {what}")
            vector, expected = np.array(values, dtype=np.float32), np.array(text["vector"], dtype=np.float32)
            if vector.shape != expected.shape:
                raise RuntimeError(f"{title} gives {len(vector)} dimensions instead of {len(expected)} {what}")
            difference, similarity = float(np.abs(expected - vector).max()), 1 - float(distances(vector, expected))
            if least is None and not difference <= parity["tolerance"]:
                raise RuntimeError(
                    f"{title} gives other vectors {what}: largest difference {difference:.2e}, allowed "
                    f"{parity['tolerance']:.0e}"
                )
            if least is not None and not similarity >= least:
                raise RuntimeError(
                    f"{title} gives other vectors {what}: smallest cosine {similarity:.6f}, allowed {least}"
                )
            similarities.append(similarity)
            largest = max(largest, difference)
    if not similarities:
        raise RuntimeError(
            f"no reference text has less than {parity['max_length']} tokens, so {title} is not compared; export with "
            "a larger max_length"
        )
    return {
        "texts": len(similarities),
        "beyond_limit": beyond,
        "largest_difference": largest,
        "lowest_cosine": round(min(similarities), 7),
        "mean_cosine": round(float(np.mean(similarities)), 7),
    }
