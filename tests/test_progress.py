"""Progress of long work: on a terminal, elsewhere, and switched off."""

import fcntl
import io
import json
import logging
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from embrew import progress
from embrew.encoder import Encoder
from embrew.search import SearchIndex
from tests.conftest import SENTENCES


@contextmanager
def terminal():
    """Make stderr a terminal; the file that is written to."""
    file = io.StringIO()
    file.isatty = lambda: True
    with patch.object(sys, "stderr", file):
        yield file


def test_a_bar_shows_description_rate_elapsed_and_remaining_time():
    with terminal() as stderr, progress.within("STSB"), progress.progress(200, "encode", "text") as bar:
        time.sleep(0.15)
        bar.update(50)
        bar.note("loss 0.5")
        bar.shown.refresh()
        shown = stderr.getvalue()
    assert re.search(r"STSB: encode:  25%.* 50/200 \[00:00<00:00, *\d+(\.\d+)?text/s, loss 0\.5\]", shown), shown
    assert stderr.getvalue().rstrip(" ").endswith("\r"), "the bar is removed"


def test_log_lines_have_an_eta_and_are_timed(monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="embrew.progress")
    monkeypatch.setattr(progress, "EVERY", 0.2)
    progress.set_style("lines")
    with progress.progress(1000, "encode", "text", initial=100) as bar:
        for _ in range(10):
            time.sleep(0.05)
            bar.update(30)
    assert 1 <= len(caplog.messages) <= 3, "not a line per update"
    for message in caplog.messages:
        found = re.fullmatch(
            r"encode  (\d+) of 1,000 texts \((\d+)%\), ([\d,.]+) texts/s, 00:00 elapsed, 00:0(\d) remaining", message
        )
        assert found, message
        done, share, rate, left = int(found[1]), int(found[2]), float(found[3].replace(",", "")), int(found[4])
        assert share == round(done / 10)
        assert 200 < rate < 620, "units of an earlier run do not count"
        assert left == pytest.approx((1000 - done) / rate, abs=1.01)


def test_a_stalled_bar_still_writes_lines(monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="embrew.progress")
    monkeypatch.setattr(progress, "EVERY", 0.1)
    progress.set_style("lines")
    with progress.progress(10, "step", "step") as bar:
        time.sleep(0.2)
        bar.update(1)
        bar.shown.refresh()
    assert any("1 of 10 steps (10%)" in message for message in caplog.messages)


@pytest.mark.parametrize(("style", "shown"), [("off", True), ("bar", False), ("lines", False), (None, False)])
def test_nothing_is_shown_when_it_is_off(style, shown, caplog):
    caplog.set_level(logging.DEBUG)
    progress.set_style(style)
    with terminal() as stderr, progress.progress(2, "encode", "text", shown=shown) as bar, bar.shared():
        bar.update(1)
        bar.reach(2)
        with progress.progress(1, "encode", "text") as part:
            part.update(1)
    assert (stderr.getvalue(), caplog.messages) == ("", [])


def test_calls_share_one_bar_and_other_units_have_their_own():
    with terminal(), progress.progress(4, "all", "text") as bar:
        with bar.shared():
            with progress.progress(2, "encode", "text") as part:
                part.update(2)
            with progress.progress(1, "train", "step") as other:
                assert other.shown is not bar.shown
        assert bar.shown.n == 2
        with progress.progress(2, "encode", "text") as own:
            assert own.shown is not bar.shown
        bar.reach(1)
        bar.reach(4)
        assert bar.shown.n == 4
        assert not bar.shown.disable, "a part does not close the bar"


def test_an_index_counts_every_document_once(tiny_encoder, monkeypatch):
    seen = []
    monkeypatch.setattr(progress, "notebook_or_terminal", lambda **options: seen.append(Counted(**options)) or seen[-1])
    monkeypatch.setattr("embrew.search.BLOCK", 3)
    SearchIndex.build(tiny_encoder, _documents(7), show_progress_bar=True)
    (bar,) = seen
    assert (bar.total, bar.counted) == (7, 7)


def _documents(count):
    from embrew.data.beir import Document

    return [Document(str(i), SENTENCES[i % len(SENTENCES)]) for i in range(count)]


class Counted(progress.tqdm):
    counted = 0

    def __init__(self, **options):
        super().__init__(**options, file=io.StringIO())

    def update(self, n=1):
        self.counted += n
        return super().update(n)


@pytest.fixture
def tiny_encoder(model_folder):
    return Encoder.from_pretrained(model_folder("llama"), device="cpu", pooling="mean")


def test_log_lines_from_two_threads_do_not_wait_for_each_other(monkeypatch, capsys):
    """A log line beside a bar takes tqdm's lock, and a bar that is a log line holds it while it logs."""
    from embrew.cli.console import TerminalHandler

    monkeypatch.setattr(progress, "EVERY", 0.0)
    progress.set_style("lines")
    logger = logging.getLogger("embrew.progress")
    handler = TerminalHandler()
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.addHandler(handler)
    try:
        with progress.progress(10_000, "encode", "text") as bar:
            threads = [
                threading.Thread(target=lambda: [bar.shown.refresh() for _ in range(200)], daemon=True),
                threading.Thread(target=lambda: [logger.info("beside") for _ in range(200)], daemon=True),
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert not any(thread.is_alive() for thread in threads)
    finally:
        logger.removeHandler(handler)


def on_terminal(arguments, cwd, *, columns=100):
    """Run a command whose stderr and stdout are a terminal; return its exit code, what it showed, and when it began."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    started = time.monotonic()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    command = [sys.executable, "-m", "embrew", *arguments]
    child = subprocess.Popen(command, cwd=cwd, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    shown, first = b"", None
    while True:
        ready, _, _ = select.select([master], [], [], 0.5)
        if ready:
            try:
                block = os.read(master, 65536)
            except OSError:
                break
            if not block:
                break
            first = first or time.monotonic() - started
            shown += block
        elif child.poll() is not None:
            break
    os.close(master)
    return child.wait(), shown.decode(), first


@pytest.mark.slow
def test_a_run_on_a_terminal_shows_bars_and_with_quiet_only_results(model_folder, tmp_path):
    folder = model_folder("llama")
    (tmp_path / "data").mkdir()
    rows = [{"sentence1": f"a bird {i}", "sentence2": f"a boat {i}", "score": i % 5} for i in range(9)]
    (tmp_path / "data" / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "texts.txt").write_text("".join(f"a text number {i}\n" for i in range(64)))
    (tmp_path / "recipe.yaml").write_text(f"""
encoder:
  {{model: {folder}, template: "{{text}}", pooling: {{mode: mean}}, lora: {{r: 2, lora_dropout: 0.1}}}}
stages:
  - name: one
    objective: {{type: contrastive, positives: dropout}}
    data: {{path: texts.txt}}
    batch: {{size: 8}}
    training: {{max_steps: 6, learning_rate: 0.001}}
evaluation: {{dev: [data]}}
""")
    code, shown, first = on_terminal(["train", "recipe.yaml", "-o", "run"], tmp_path)
    assert code == 0, shown
    assert re.search(r"one: .*6/6 \[\d\d:\d\d<\d\d:\d\d, .*steps?", shown), shown
    code, shown, first = on_terminal(["evaluate", "run", "--data", "data", "--split", "dev"], tmp_path)
    assert code == 0, shown
    assert shown.startswith("loading run")
    assert first < 10, "before anything is imported"
    assert "data: encode" in shown, "evaluation names its task"
    code, shown, _ = on_terminal(["evaluate", "run", "--data", "data", "--split", "dev", "--quiet"], tmp_path)
    assert code == 0, shown
    assert "encode" not in shown and "loading" not in shown
    assert "task" in shown.splitlines()[0]
    piped = subprocess.run(
        [sys.executable, "-m", "embrew", "encode", "run", "texts.txt", "out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert piped.returncode == 0, piped.stderr
    assert "\r" not in piped.stderr and "%|" not in piped.stderr, "no bar in a file"
