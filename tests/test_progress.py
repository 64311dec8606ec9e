"""Progress of long work: on a terminal, elsewhere, and switched off."""

import io
import logging
import re
import sys
import threading
import time
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from embrew import progress


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
        bar.bar.refresh()
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


@pytest.mark.parametrize(("style", "shown"), [("off", True), ("bar", False), ("lines", False), (None, False)])
def test_nothing_is_shown_when_it_is_off(style, shown, caplog):
    caplog.set_level(logging.DEBUG)
    progress.set_style(style)
    with terminal() as stderr, progress.progress(2, "encode", "text", show=shown) as bar, bar.shared():
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
                assert other.bar is not bar.bar
        assert bar.bar.n == 2
        with progress.progress(2, "encode", "text") as own:
            assert own.bar is not bar.bar
        bar.reach(1)
        bar.reach(4)
        assert bar.bar.n == 4
        assert not bar.bar.disable, "a part does not close the bar"


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
                threading.Thread(target=lambda: [bar.bar.refresh() for _ in range(200)], daemon=True),
                threading.Thread(target=lambda: [logger.info("beside") for _ in range(200)], daemon=True),
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert not any(thread.is_alive() for thread in threads)
    finally:
        logger.removeHandler(handler)
