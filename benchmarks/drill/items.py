"""The drill's items, in order, with the seconds that each may take on a GPU of the H100's kind (estimates)."""

from __future__ import annotations

from pathlib import Path

from drill.record import TOP
from drill.schedule import Item

BENCHMARKS = {  # of `run.py --gpu`: seconds
    "ctkd-gpu-0.6b": 100,
    "ctkd-gpu-1.7b": 130,
    "packed-gpu-causal": 100,
    "packed-gpu-bidirectional": 100,
    "fused-head": 40,
}
METHODS = {  # name: title
    "compress": "LLM2Comp's distillation (compress)",
    "unsupervised": "contrastive, positives by dropout",
    "supervised": "contrastive, positives of a column",
    "ese": "ESE",
    "align": "AutoRegEmbed's alignment",
    "bottleneck": "LBR's bottleneck, every weight",
    "epic": "EPIC",
}
TRAININGS = tuple(f"train-{method}" for method in METHODS)


def gpu_tests(top: Path = TOP) -> list[str]:
    """Return the files with tests that are marked `gpu`."""
    files = sorted((top / "tests").rglob("test_*.py"))
    return [path.relative_to(top).as_posix() for path in files if "mark.gpu" in path.read_text(encoding="utf-8")]


def items() -> list[Item]:
    """Return all items."""
    tests = [
        Item(
            name=f"tests-{Path(path).stem.removeprefix('test_')}",
            title=f"gpu-marked tests of {path}",
            run="drill.suites:gpu_tests",
            given={"path": path},
            seconds=120,
        )
        for path in gpu_tests()
    ]
    benchmarks = [
        Item(
            name=f"bench-{name}",
            title=f"benchmark {name} of make bench-gpu",
            run="drill.suites:benchmark",
            given={"name": name},
            seconds=seconds,
        )
        for name, seconds in BENCHMARKS.items()
    ]
    trainings = [
        Item(
            name=f"train-{method}",
            title=f"training, Qwen3-0.6B's shape: {title}",
            run="drill.training:train",
            given={"method": method},
            seconds=70,
        )
        for method, title in METHODS.items()
    ]
    return [*tests, *benchmarks, *trainings, *others()]


def others() -> list[Item]:
    """Return the items that come after tests, benchmarks and trainings."""
    return [
        Item(
            name="encode-0.6b",
            title="encoding by length, Qwen3-0.6B's shape",
            run="drill.encoding:throughput",
            given={"shape": "0.6b"},
            seconds=80,
        ),
        Item(
            name="encode-7b",
            title="encoding by length, a 7B Mistral's shape",
            run="drill.encoding:throughput",
            given={"shape": "7b"},
            seconds=110,
        ),
        Item(
            name="encode-peer",
            title="encoding beside Sentence-Transformers in float16",
            run="drill.encoding_peer:beside",
            seconds=80,
        ),
        Item(
            name="prefix",
            title="a prompt of 256 tokens computed once, against for every text",
            run="drill.encoding_peer:prefix",
            seconds=50,
        ),
        Item(
            name="attention",
            title="flash-attention and FlexAttention against eager attention, Qwen3-0.6B's shape",
            run="drill.equality:attention",
            seconds=80,
        ),
        Item(
            name="fused-kl",
            title="fused kernels of KL and NLL against the eager chunk, a vocabulary of 152k",
            run="drill.equality:fused",
            seconds=40,
        ),
        Item(
            name="qlora",
            title="LLM2Comp's distillation on 4-bit weights",
            run="drill.training:qlora",
            given={"method": "compress"},
            seconds=90,
        ),
        Item(
            name="bottleneck-step",
            title="LBR's step on a row of 2,048 tokens, two causal calls against a dense mask",
            run="drill.steps:bottleneck",
            seconds=60,
        ),
        Item(
            name="espresso-targets",
            title="ESE's targets of 28 layers, against a loop of svd_lowrank",
            run="drill.steps:espresso",
            seconds=50,
        ),
    ]
