"""`embrew doctor`: versions, devices, and a self-test with the model that ships."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.requirements import Requirement

from embrew.machine import cores, total_and_free

if TYPE_CHECKING:
    import numpy as np

    from embrew.encoder import Encoder

Status = Literal["ok", "warning", "failed"]
SECONDS = 300.0  # that the process of the devices and the self-test may take
REPORT = "report it with the output of embrew doctor --json"


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: what was examined.
        status: `ok`; `warning`: embrew works, with a limit; `failed`: something does not work, or not as promised.
        value: the result, in one line.
        advice: what the user should do; empty where all is well.
    """

    name: str
    status: Status
    value: str
    advice: str = ""


def examine(*, self_test: bool = True) -> Iterator[Finding]:
    """Yield what is found, line by line: packages, machine, then devices and self-test in a process of their own.

    Args:
        self_test: also open, train, save and export the shipped model.
    """
    yield from packages()
    yield from machine()
    yield from in_process([sys.executable, "-m", "embrew.doctor", "self-test" if self_test else "devices"])


def packages() -> Iterator[Finding]:
    """Yield the versions of Python, embrew and its required packages, and the state of each optional extra."""
    yield Finding("python", "ok", platform.python_version())
    try:
        distribution = metadata.distribution("embrew")
    except metadata.PackageNotFoundError:
        advice = "install it: pip install embrew, or pip install -e . in a checkout"
        yield Finding("embrew", "failed", "the source is there, the package is not installed", advice)
        return
    yield Finding("embrew", "ok", distribution.version)
    requirements = [Requirement(text) for text in distribution.requires or ()]
    required = [each for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
    yield from map(required_package, required)
    for extra in distribution.metadata.get_all("Provides-Extra") or ():
        if extra in ("dev", "docs"):
            continue
        parts = [
            required_package(each)
            for each in requirements
            if each not in required and each.marker is not None and each.marker.evaluate({"extra": extra})
        ]
        value = ", ".join(f"{part.name} {part.value}" for part in parts)
        too_old = any(part.status == "failed" and part.value != "not installed" for part in parts)
        advice = f"pip install --upgrade 'embrew[{extra}]'" if too_old else ""
        yield Finding(f"extra {extra}", "warning" if too_old else "ok", value, advice)


def required_package(requirement: Requirement) -> Finding:
    """Compare the installed version of a package with the versions that embrew allows."""
    name, allowed = requirement.name, f"{requirement.name}{requirement.specifier}"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, "failed", "not installed", f"pip install '{allowed}'")
    if not requirement.specifier.contains(version, prereleases=True):
        return Finding(name, "failed", f"{version}; embrew needs {allowed}", f"pip install --upgrade '{allowed}'")
    return Finding(name, "ok", version)


def machine() -> Iterator[Finding]:
    """Yield the operating system, the cores that this process may use, their load, and free memory."""
    value = f"{platform.system()} {platform.release()}, {platform.machine()}"
    linux = sys.platform == "linux"
    yield Finding("system", "ok" if linux else "warning", value, "" if linux else "embrew is tested on Linux")
    load, usable = os.getloadavg()[0], cores()
    advice = "other processes use the CPU; measured times are too long" if load > 1.5 * usable else ""
    yield Finding("cpu", "warning" if advice else "ok", f"{usable} usable cores, load {load:.1f}", advice)
    total, free = total_and_free()
    value = f"{total / 1e9:.1f} GB" if free is None else f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"
    little = free is not None and free < 2e9
    advice = "end other programs, or choose a smaller model or batch" if little else ""
    yield Finding("memory", "warning" if little else "ok", value, advice)


def in_process(command: list[str], seconds: float = SECONDS) -> Iterator[Finding]:
    """Yield the findings that a process prints as lines of JSON, and a failed one if it crashes or takes too long."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            timer = threading.Timer(seconds, process.kill)
            timer.start()
            for line in process.stdout or ():
                yield Finding(**json.loads(line))
            code = process.wait()
            late = not timer.is_alive()
            timer.cancel()
        errors.seek(0)
        last_line = (errors.read().strip().splitlines() or ["no output"])[-1]
    if code:
        ending = f"took more than {seconds:.0f} s" if late else f"ended with {_exit(code)}"
        yield Finding("self-test", "failed", f"its process {ending}: {last_line}"[:300], REPORT)


def _exit(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def devices() -> Iterator[Finding]:
    """Yield torch's threads and kernels, the GPUs, and whether the device computes in bfloat16."""
    import torch

    from embrew.storage.base_model import pick_device, supports_natively

    usable, threads = cores(), torch.get_num_threads()
    advice = f"set OMP_NUM_THREADS={usable}: threads that share a core wait for each other" if threads > usable else ""
    value = f"{threads} threads on {usable} usable cores, {torch.backends.cpu.get_cpu_capability()} kernels"
    yield Finding("threads", "warning" if advice else "ok", value, advice)
    for index in range(torch.cuda.device_count()):
        gpu, (free, total) = torch.cuda.get_device_properties(index), torch.cuda.mem_get_info(index)
        value = f"{gpu.name}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free, compute {gpu.major}.{gpu.minor}"
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        advice = "" if native else "open models with --dtype float32: it does not compute in bfloat16"
        yield Finding(f"cuda:{index}", "ok" if native else "warning", value, advice)
    if not torch.cuda.device_count():
        apple, cuda = torch.backends.mps.is_available(), torch.version.cuda
        value = "Apple GPU, used where it is named (device='mps')" if apple else "no GPU"
        yield Finding("accelerator", "ok", value + (f"; torch is built for CUDA {cuda}" if cuda else ""))
    device = pick_device(None)
    slow = "emulated, many times slower than float32; models are opened in float32"
    yield Finding(
        "bfloat16", "ok", f"{'native' if supports_natively(torch.bfloat16, device) else slow} ({device.type})"
    )


def self_test() -> Iterator[Finding]:
    """Compare vectors of the shipped model with known ones, then train, save, reopen and export it."""
    import numpy as np

    from embrew.encoder import Encoder
    from embrew.passport.texts import REFERENCE_TEXTS
    from embrew.storage.base_model import ASSETS, weights_sha256

    reference = json.loads((ASSETS["nano"].parent / "nano_vectors.json").read_text())
    sha256 = weights_sha256(ASSETS["nano"])
    if sha256 != reference["weights_sha256"]:
        value = f"its weights have sha256 {sha256[:12]}…, shipped were {reference['weights_sha256'][:12]}…"
        advice = "install embrew again: pip install --force-reinstall --no-deps embrew"
        yield Finding("self-test: nano", "failed", value, advice)
        return
    open_nano = partial(Encoder.from_pretrained, "nano", dtype="float32", pooling="mean", max_length=128)
    encoder = open_nano()
    batched = np.asarray(encoder.encode(list(REFERENCE_TEXTS)))
    expected = np.array(reference["vectors"], dtype=np.float32)
    yield _compared("vectors", "from the shipped ones", batched[:, : expected.shape[1]], expected, encoder)
    alone = np.concatenate([np.asarray(encoder.encode([text])) for text in REFERENCE_TEXTS[:6]])
    yield _compared("padding", "of a text alone and in a batch", alone, batched[:6], encoder)
    for mode in ("causal", "bidirectional"):
        open_nano(attention=mode)  # which measures it
    yield Finding("self-test: attention", "ok", "causal and bidirectional as expected")
    yield from _training()


def _training() -> Iterator[Finding]:
    """Train a LoRA for two steps, save it, open it again, and export it; all in a temporary folder."""
    import numpy as np

    from embrew.encoder import Encoder
    from embrew.export.exporting import export_encoder
    from embrew.passport.texts import REFERENCE_TEXTS
    from embrew.recipe import Recipe, build
    from embrew.stock import open_stock
    from embrew.training.stages import train

    with tempfile.TemporaryDirectory(prefix="embrew-doctor-") as scratch:
        run, export, data = (Path(scratch) / name for name in ("run", "export", "pairs.jsonl"))
        rows = [{"query": text[:24], "positive": text[8:]} for text in REFERENCE_TEXTS if len(text) > 24]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = (
            ("encoder.dtype", "float32"),
            ("stages.supervised.data", {"path": str(data)}),
            ("stages.supervised.batch", {"size": 4}),
            ("stages.supervised.training", {"max_steps": 2, "learning_rate": 0.01, "report_to": "none"}),
        )
        recipe = Recipe.load("baselines/nli-nano", settings)
        before = np.asarray(build.encoder(recipe).encode(list(REFERENCE_TEXTS)))
        trained = train(recipe, run)
        after = np.asarray(trained.encode(list(REFERENCE_TEXTS)))
        change = float(np.abs(after - before).max())  # NaN where training diverged
        works = change > 0
        value = f"two steps, vectors changed by {change:.1e}"
        yield Finding("self-test: training", "ok" if works else "failed", value, "" if works else REPORT)
        reopened = np.asarray(Encoder.from_pretrained(run).encode(list(REFERENCE_TEXTS)))
        yield _compared("saving", "after reopening", reopened, after, trained)
        export_encoder(trained, export, verify="off")
        stock = np.asarray(open_stock(str(export)).encode(list(REFERENCE_TEXTS)))
        yield _compared("export", "in Sentence-Transformers", stock, after, trained)


def _compared(name: str, which: str, vectors: np.ndarray, expected: np.ndarray, encoder: Encoder) -> Finding:
    """Return the finding of vectors that must equal others up to rounding."""
    allowed = 1e-4 if encoder.device.type == "cpu" else 1e-3
    difference = float(abs(vectors - expected).max())
    equal = difference <= allowed  # false for NaN
    value = f"largest difference {which} {difference:.1e}, allowed {allowed:.0e}"
    return Finding(f"self-test: {name}", "ok" if equal else "failed", value, "" if equal else REPORT)


if __name__ == "__main__":
    output = sys.stdout
    with redirect_stdout(sys.stderr):  # lines that libraries print
        for part in (devices, self_test)[: 1 + (sys.argv[1] == "self-test")]:
            for each in part():
                print(json.dumps(asdict(each)), file=output, flush=True)
