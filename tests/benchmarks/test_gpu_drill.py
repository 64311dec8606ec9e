"""The GPU drill's own logic, without a GPU: order, time, restart, failures, gates and report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu_drill
from drill import child, gates, preflight, report
from drill.items import TRAININGS, items
from drill.record import Record
from drill.schedule import Item, in_process, in_words, run_items

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
A, B, C = (Item(name=name, title=f"item {name}", run=f"of_test:{name}", seconds=10) for name in "abc")
PASSED = {"status": "passed", "figures": {"tokens_per_s": 1000.0}}
OF_TEST = """
import os, signal, time
def passes(value): return {"figures": {"value": value}, "checks": {"so": True}}
def misses(): return {"figures": {"value": 1}, "checks": {"so": True, "not that": False}}
def raises(): raise RuntimeError("no such kernel")
def crashes(): os.kill(os.getpid(), signal.SIGSEGV)
def sleeps(): print("begun", flush=True); time.sleep(60)
def skips():
    from drill.child import Skipped
    raise Skipped("nothing to measure")
"""


class Clock:
    """Seconds that pass when an item runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "gpu-drill.json", code="now")


def call(record: Record, of: dict[str, Any], *, seconds: float = 100, took: float = 5, chosen=(A, B, C)) -> list[str]:
    """Run items whose results are given; return the names of those that were begun."""
    clock, begun = Clock(), []

    def start(item: Item, limit: float) -> dict[str, Any]:
        begun.append(item.name)
        clock.now += took
        found = of.get(item.name, PASSED)
        if isinstance(found, BaseException):
            raise found
        return dict(found)

    run_items(chosen, record, start, seconds=seconds, changed=lambda: None, say=lambda line: None, clock=clock)
    return begun


def test_done_items_are_not_run_again_but_those_of_other_code_are(record: Record) -> None:
    assert call(record, {"b": {"status": "failed"}, "c": {"status": "skipped", "reason": "none"}}) == ["a", "b", "c"]
    again = Record(record.path, code="now")
    assert call(again, {}) == []
    assert again.items["a"]["figures"] == {"tokens_per_s": 1000.0} and again.items["a"]["seconds"] == 5
    assert call(Record(record.path, code="new", keeps=True), {}) == ["b"]  # it failed
    assert call(Record(record.path, code="newer"), {}) == ["a", "b", "c"]
    again = Record(record.path, code="newer")
    again.forget(["c"])
    assert call(again, {}) == ["c"]


def test_an_item_that_may_not_fit_is_not_begun_and_a_shorter_one_is(record: Record) -> None:
    long = Item(name="long", title="", run="of_test:a", seconds=96)
    assert call(record, {}, chosen=(A, long, B)) == ["a", "b"]
    assert "long" not in record.items
    assert call(record, {}, chosen=(A, long, B)) == ["long"]


def test_what_was_killed_midway_runs_last_and_what_took_too_long_needs_more_time(record: Record) -> None:
    with pytest.raises(KeyboardInterrupt):
        call(record, {"a": KeyboardInterrupt()})
    assert json.loads(record.path.read_text())["items"]["a"]["status"] == "stopped"
    record.begin("b")  # and the machine was lost
    again = Record(record.path, code="now")
    assert again.items["b"]["status"] == "stopped"
    assert call(again, {"a": {"status": "stopped"}}, took=30) == ["c", "a", "b"]
    assert call(Record(record.path, code="now"), {}, seconds=37) == []  # 30 s, and a quarter
    assert call(Record(record.path, code="now"), {}, seconds=38) == ["a"]


def run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float = 60) -> dict[str, Any]:
    """Run a function of `OF_TEST` as an item's process."""
    (tmp_path / "of_test.py").write_text(OF_TEST)
    code = (
        "import sys; from pathlib import Path; from drill import child; from drill.schedule import Item\n"
        f"given = {{'value': 3}} if '{name}' == 'passes' else {{}}\n"
        f"child.run(Item(name='x', title='', run='of_test:{name}', given=given), Path(sys.argv[1]), pretended=False)"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(BENCHMARKS), str(tmp_path)]))
    return in_process(A, limit, command=[sys.executable, "-c", code], log=tmp_path / "x.log", say=lambda line: None)


def test_results_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("passes", tmp_path, monkeypatch) == {"status": "passed", "figures": {"value": 3}, "checks": {"so": True}}
    missed = run("misses", tmp_path, monkeypatch)
    assert missed["status"] == "failed" and in_words(missed, 2.0) == "failed in 2 s; not so: not that"
    raised = run("raises", tmp_path, monkeypatch)
    assert raised == {"status": "failed", "reason": "RuntimeError: no such kernel"}
    assert "Traceback" in (tmp_path / "x.log").read_text()
    crashed = run("crashes", tmp_path, monkeypatch)
    assert crashed["status"] == "failed" and "SIGSEGV" in crashed["reason"]
    assert run("skips", tmp_path, monkeypatch) == {"status": "skipped", "reason": "nothing to measure"}


def test_a_process_is_stopped_at_the_limit_and_says_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    stopped = run("sleeps", tmp_path, monkeypatch, limit=1.0)
    assert stopped["status"] == "stopped" and time.monotonic() - began < 15
    assert "in sleeps" in (tmp_path / "x.log").read_text()


def test_the_process_of_an_item_ends_with_the_drill(tmp_path: Path) -> None:
    code = "import time; from drill import child; child._end_with_parent(); print('up', flush=True); time.sleep(60)"
    drill = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS)},
    )
    assert drill.stdout is not None and drill.stdout.readline() == b"up\n"
    drill.send_signal(signal.SIGKILL)
    began = time.monotonic()
    assert drill.stdout.read() == b""  # the end of the last process that could write
    assert time.monotonic() - began < 20


def test_exit_status() -> None:
    assert gpu_drill.code_of(["passed", "skipped"], ["pass", "not run"]) == 0
    assert gpu_drill.code_of(["passed", "failed"], ["pass"]) == 1
    assert gpu_drill.code_of(["passed", "passed"], ["miss"]) == 1
    assert gpu_drill.code_of(["passed", "not run"], ["pass"]) == 3
    assert gpu_drill.code_of(["passed", "stopped"], ["pass"]) == 3


def test_gates_by_hand() -> None:
    rules = {(one.name, one.what.split(",")[0]): one for one in gates.gates(["train-a", "train-b"])}
    assert {name for name, _ in rules} == {f"G{number}" for number in range(1, 8)}
    encode = rules["G1", "encode"]
    assert encode.items == ("encode-7b",) and encode.bound == 0.5
    share = next(one for one in gates.gates([]) if "share of the training step" in one.what)

    def row(loss_ms: float, **settings: bool) -> dict[str, Any]:
        found = {"espresso-targets": {"status": "passed", "figures": {"target_ms": loss_ms}}}
        found["train-ese"] = {"status": "failed", "figures": {"step_ms": 100.0}}
        return share.row(found, pretended=settings.get("pretended", False))

    assert (row(2.9)["verdict"], row(3.1)["verdict"]) == ("pass", "miss")
    assert row(3.1)["shown"] == "3.1 %" and row(3.1)["required"] == "≤ 3.0 %"
    assert (row(2.9, pretended=True)["verdict"], row(2.9, pretended=True)["why"]) == ("not run", "pretended device")
    idle = rules["G7", "training"]
    found = {"train-a": {"status": "passed", "figures": {"idle_share": 0.02}}}
    assert idle.row(found, pretended=False)["why"] == "train-b: not run"
    found["train-b"] = {"status": "passed", "figures": {"idle_share": 0.2}}
    assert idle.row(found, pretended=False)["verdict"] == "miss"
    memory = next(one for one in gates.gates([]) if one.name == "G3")
    measures = [{"what": "step time", "ratio": 1.3}, {"what": "peak memory at micro-batch 4", "ratio": 2.6}]
    found = {"bench-ctkd-gpu-1.7b": {"status": "passed", "figures": {"measures": measures}}}
    assert memory.row(found, pretended=False)["measured"] == 2.6


def test_the_report_of_a_part(record: Record) -> None:
    with pytest.raises(KeyboardInterrupt):
        call(record, {"a": {"status": "failed", "reason": "RuntimeError: a | b\nc"}, "b": KeyboardInterrupt()})
    record.preflight = {"python": "3.12", "driver": None, "installed": {"torch": "2.11.0"}}
    text = report.page([A, B, C], record, gates.gates(TRAININGS))
    assert "1 of 3 items were run. no GPU; driver none, Python 3.12, torch 2.11.0" in text
    assert "| a | item a | failed | 5 | RuntimeError: a / b c |" in text
    assert "| c | item c | not run |  |  |" in text
    assert text.count("**not run**") == len(gates.gates(TRAININGS))


def test_every_item_has_its_own_name_and_file() -> None:
    known = items()
    assert len({item.name for item in known}) == len(known) >= 22
    for item in known:
        module, _, name = item.run.partition(":")
        assert f"def {name}(" in (BENCHMARKS / f"{module.replace('.', '/')}.py").read_text()
        assert item.seconds < 9 * 60
    named = {name for rule in gates.gates(TRAININGS) for name in rule.items}
    assert named <= {item.name for item in known}


def test_preflight_names_what_is_missing() -> None:
    assert preflight.lacking("datasets", (4, 0), {}) == ["datasets is not installed; embrew needs datasets>=4.0"]
    old = preflight.lacking("torch", (2, 11), {"torch": "2.9.1+cu130"})
    assert old == ["torch 2.9.1+cu130 is installed; embrew needs torch>=2.11"]
    assert preflight.lacking("torch", (2, 11), {"torch": "2.11.0+cu130"}) == []
    assert ("torch", (2, 11)) in preflight.requirements() and ("scikit-learn", (1, 4)) in preflight.requirements()
    blind = {"available": False, "driver": "580.1", "torch": "2.11.0", "cuda": "13.0"}
    assert "sees no GPU" in preflight.gpu_problems(blind)[0]
    assert preflight.gpu_problems({**blind, "driver": None}) == []


def test_outcomes_do_not_import_the_pretended_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU nothing is replaced."""
    monkeypatch.setitem(sys.modules, "drill.pretend", None)
    item = Item(name="x", title="", run="json:dumps", given={"obj": 1})
    monkeypatch.setattr(child, "function_of", lambda item: lambda **given: {"figures": given})
    assert child.outcome(item, pretended=False) == {"status": "passed", "figures": {"obj": 1}}


def test_idle_share_by_hand() -> None:
    """Busy from 0 to 4, 3 to 5 and 8 to 10 of 10: 3 are idle."""
    from drill.measure import idle_of

    assert idle_of([(8, 10), (0, 4), (3, 5), (1, 2)]) == pytest.approx(0.3)
    assert idle_of([]) == 1.0


@pytest.mark.slow
def test_all_items_on_the_pretended_device(tmp_path: Path) -> None:
    options = ["--pretend", "--minutes", "60", "--output", str(tmp_path)]
    command = [sys.executable, str(BENCHMARKS / "gpu_drill.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    found = json.loads((tmp_path / "gpu-drill.json").read_text())["items"]
    assert [found[item.name]["status"] for item in items()] == ["passed"] * len(items())
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "passed in" not in again.stdout
