"""A folder that is claimed is one process's own: until it ends, and not longer because of processes that it forked."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from embrew.files.writing import atomic_folder, atomic_path, check_unclaimed, claimed, is_held

FORKS = """
import os, sys, time
from pathlib import Path
from embrew.files.writing import claimed
with claimed(Path(sys.argv[1]), "training into"):
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(60)
        os._exit(0)
    time.sleep(60)
"""


def test_a_forked_process_does_not_keep_the_claim(tmp_path):
    """As a DataLoader's worker, which lives for seconds after its parent was killed."""
    command = [sys.executable, "-c", FORKS, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        with pytest.raises(FileExistsError, match="another process is training into "):
            check_unclaimed(tmp_path / "run", "training into")
        parent.kill()
        parent.wait()
        try:
            os.kill(child, 0)  # it is there
            assert not is_held(tmp_path / "run")
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_claim_leaves_no_empty_folder(tmp_path):
    check_unclaimed(tmp_path / "new", "x")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match="refused"), claimed(tmp_path / "new", "x"):
        raise ValueError("refused")
    assert not (tmp_path / "new").exists()
    with claimed(tmp_path / "new", "x"):
        (tmp_path / "new" / "file").touch()
    (tmp_path / "empty").mkdir()
    with claimed(tmp_path / "empty", "x"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "new"]


def test_a_file_system_without_locks(tmp_path, monkeypatch, caplog):
    def flock(handle: int, how: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", flock)
    with claimed(tmp_path / "run", "training into"), claimed(tmp_path / "run", "training into"):
        assert "file system without locks; make sure that no other process is training into it" in caplog.text
        check_unclaimed(tmp_path / "run", "training into")


def test_two_writers_of_one_folder(tmp_path):
    """The second is refused, and leaves the first alone."""
    with atomic_folder(tmp_path / "out", marker="m") as first:
        (first / "m").write_text("first")
        with (
            pytest.raises(FileExistsError, match="another process is writing .*out; wait until it ends"),
            atomic_folder(tmp_path / "out", marker="m"),
        ):
            pass
    assert (tmp_path / "out" / "m").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_target_that_appears_while_it_is_written(tmp_path):
    """By a process that takes no lock: the folder or file that is there first stays."""
    with pytest.raises(FileExistsError, match="out exists already"), atomic_folder(tmp_path / "out", marker="m") as new:
        (new / "m").write_text("second")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.txt").write_text("first")
    with (
        pytest.raises(FileExistsError, match="file exists already"),
        atomic_path(tmp_path / "file", overwrite=False) as new,
    ):
        new.write_text("second")
        (tmp_path / "file").write_text("first")
    assert [path.read_text() for path in (tmp_path / "out" / "thesis.txt", tmp_path / "file")] == ["first", "first"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out"]


def test_a_new_file_where_there_are_no_hard_links(tmp_path, monkeypatch):
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    with atomic_path(tmp_path / "file", overwrite=False) as new:
        new.write_text("first")
    with pytest.raises(FileExistsError, match="file exists already"), atomic_path(tmp_path / "file", overwrite=False):
        pass
    assert [path.read_text() for path in tmp_path.iterdir()] == ["first"]
