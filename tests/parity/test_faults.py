"""Every fault that is planted in a server is found by its name; a server without a fault is equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embrew.parity.compare import ParityResult, compare
from tests.conftest import by_default
from tests.parity.faulty import FORMS, LIMIT, FaultyRuntime
from tests.parity.servers import ADDRESSES, serving

FAULTS = {
    "": set(),
    "bos missing": {"bos_missing"},
    "bos doubled": {"bos_doubled"},
    "eos missing": {"eos_missing"},
    "no special tokens": {"bos_missing+eos_missing"},
    "prompt missing": {"prompt_missing"},
    "prompt doubled": {"prompt_doubled"},
    "prompt added": {"prompt_added_query"},
    "prompt by name ignored": {"prompt_missing"},
    "mean": {"pooling_mean"},
    "cls": {"pooling_cls"},
    "last": {"pooling_last"},
    "causal": {"attention_causal"},
    "bidirectional": {"attention_bidirectional"},
    "not normalised": {"norm"},
    "mean, not normalised": {"pooling_mean", "norm"},
    "cls, not normalised": {"pooling_cls", "norm"},
    "truncated at 64": {"truncated_64"},
    "truncated at 100": {"truncated"},
    "truncated at 24": {"truncated"},
    "truncated naively": {f"truncated_{LIMIT}_no_end"},
    "not truncated": {"not_truncated"},
    "padding is read": {"batch"},
    "second of two": {"batch"},
    "longest first": {"order"},
    "half the dimensions": {"dimensions"},
}
"""Faults that are planted, and the names by which they have to be found."""
NOT_THERE = {
    "last": {"last", "causal"},
    "mean": {
        "mean",
        "mean, not normalised",
        "bidirectional",
        "eos missing",
        "no special tokens",
        "truncated naively",
    },
    "one-memory": {"last", "causal"},
    "memory": {"bidirectional", "no special tokens", "truncated naively"},
}
"""What is no fault of a form: its own pooling or attention, a token that it does not have; or gives no vector."""
QUICK = ("", "bos missing", "mean, not normalised", "truncated at 100", "padding is read")


def found(folder: Path, fault: str, kind: str, **options: Any) -> ParityResult:
    runtime = FaultyRuntime(folder, fault)
    tokenize = runtime.ids if kind != "ollama" else None
    with serving(runtime, tokenize=tokenize, only=(kind,)) as address:
        return compare(str(folder), address + ADDRESSES[kind], model="tiny", timeout=20, **options)


def named(comparison: ParityResult) -> set[str]:
    return {"+".join(cause.faults) for cause in comparison.causes}


def check(folder: Path, fault: str, kind: str) -> None:
    comparison = found(folder, fault, kind)
    assert named(comparison) == FAULTS[fault], comparison.verdict
    assert comparison.equal == (not fault)
    assert not comparison.ambiguous
    if kind != "ollama":
        ids = comparison.token_ids
        assert ids["compared"] > 40
        moved = any(word in fault for word in ("bos", "eos", "tokens", "prompt", "trunc")) and "by name" not in fault
        assert bool(ids["different"]) == moved


@pytest.mark.parametrize("fault", by_default(QUICK[:3], QUICK))
def test_a_fault_is_found_by_its_name(fault, exported):
    check(exported("one-memory"), fault, ("openai", "tei", "ollama")[QUICK.index(fault) % 3])


MATRIX = [(form, fault) for form in FORMS for fault in FAULTS if fault not in NOT_THERE[form]]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "fault"), MATRIX)
def test_every_fault_in_every_form(form, fault, exported):
    assert len(MATRIX) == 4 * 26 - 13
    kinds = ("tei",) if "by name" in fault else ("openai", "tei", "ollama")
    check(exported(form), fault, kinds[MATRIX.index((form, fault)) % len(kinds)])
