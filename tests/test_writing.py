import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import pytest
from safetensors.numpy import save_file

from embrew.files import writing
from embrew.files.writing import (
    atomic_folder,
    atomic_path,
    claimed,
    read_unchanged,
    recover,
    recover_all,
    remove_leftovers,
    write_json,
)


def half_written(file):
    with atomic_path(file) as temporary:
        temporary.write_text("half")
        raise RuntimeError


def test_a_failed_write_leaves_the_old_file(tmp_path):
    file = tmp_path / "a.json"
    write_json(file, {"a": 1})
    with pytest.raises(RuntimeError):
        half_written(file)
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(file, {"a": float("nan")})
    assert json.loads(file.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [file]


def fill(folder, text, **options):
    with atomic_folder(folder, marker="manifest.json", **options) as new:
        (new / "manifest.json").write_text(text)
        (new / f"{text}.txt").write_text(text)


def interrupted(folder):
    with atomic_folder(folder, marker="manifest.json", overwrite=True) as new:
        (new / "half.txt").write_text("half")
        raise RuntimeError


def test_folders_are_replaced_whole(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()  # an empty folder is free
    fill(folder, "one")
    with pytest.raises(FileExistsError, match="exists already"):
        fill(folder, "two")
    fill(folder, "two", overwrite=True)
    assert sorted(file.name for file in folder.iterdir()) == ["manifest.json", "two.txt"]
    with pytest.raises(RuntimeError):
        interrupted(folder)
    assert sorted(file.name for file in folder.iterdir()) == ["manifest.json", "two.txt"]
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_files_are_readable_as_the_umask_says(tmp_path, umask, mode):
    """safetensors writes files that their owner alone can read, whatever the umask; a server of another user cannot."""
    before = os.umask(umask)
    try:
        with atomic_folder(tmp_path / "out", marker="a.json") as new:
            write_json(new / "a.json", {})
            (new / "part").mkdir()
            save_file({"a": np.zeros(3)}, new / "part" / "model.safetensors")
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "out").rglob("*.*")} == {oct(mode)}


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    fill(tmp_path / "real", "one")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    fill(tmp_path / "link", "two", overwrite=True)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "two.txt").exists()


WRITE_AGAIN = """
import sys
from pathlib import Path
from embrew.files import writing
if sys.argv[2] == "without exchange":
    writing.exchange = lambda one, other: False
for number in range(10**6):
    with writing.atomic_folder(Path(sys.argv[1]), marker="manifest.json", overwrite=True) as new:
        for name in ("manifest.json", "a", "b"):
            (new / name).write_text(str(number))
    print(number, flush=True)
"""


@pytest.mark.parametrize(
    ("how", "kills"),
    [
        ("with exchange", 4),
        pytest.param("without exchange", 40, marks=pytest.mark.slow),
    ],
)
def test_killed_while_it_overwrites(tmp_path, how, kills):
    """Whenever it is killed: the folder is one of the two, whole; without exchange, once it is recovered."""
    folder, random = tmp_path / "out", Random(0)
    newest = -1
    for _ in range(kills):
        command = [sys.executable, "-c", WRITE_AGAIN, str(folder), how]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05 * random.random())
        process.kill()
        said = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        newest = int(said[-1]) if said else 0
        if how == "with exchange":
            assert folder.is_dir()
        recover(folder)
        found = {path.name: int(path.read_text()) for path in folder.iterdir()}
        assert found.keys() == {"manifest.json", "a", "b"}
        assert len({*found.values()}) == 1 and found["a"] >= newest
        assert list(tmp_path.iterdir()) == [folder]
    assert newest >= 0


def test_killed_between_two_renames(tmp_path, monkeypatch, caplog):
    """Where folders cannot be exchanged there is a moment without one; the next reader or writer puts it back."""
    folder = tmp_path / "out"
    fill(folder, "one")
    monkeypatch.setattr(writing, "exchange", lambda one, other: False)
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)  # a killed process clears nothing up
    renamed = os.rename

    def killed(source, target):
        if target == folder:
            raise KeyboardInterrupt
        renamed(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            fill(folder, "two", overwrite=True)
    monkeypatch.undo()
    assert not folder.exists()
    recover(folder)
    assert "the earlier version is restored" in caplog.text
    assert (folder / "manifest.json").read_text() == "one"
    assert list(tmp_path.iterdir()) == [folder]


def test_leftovers_of_running_processes_and_other_files_stay(tmp_path):
    """An editor's files beside a recipe look alike; and another thread may be writing the same file."""
    for name in (".a.json.swp", ".a.json.12345678", ".a.json.12345678.partial", ".b.json.12345678.partial"):
        (tmp_path / name).touch()
    with atomic_path(tmp_path / "a.json") as one, atomic_path(tmp_path / "a.json") as other:
        one.write_text("1")
        other.write_text("2")
    left = {".a.json.swp", ".a.json.12345678", ".b.json.12345678.partial", "a.json"}
    assert {path.name for path in tmp_path.iterdir()} == left
    with atomic_folder(tmp_path / "out", marker="a") as one:
        recover(tmp_path / "out")
        (one / "a").touch()
    assert (tmp_path / "out" / "a").exists()


def test_what_counts_is_on_the_disk_first(tmp_path, monkeypatch):
    """Content is flushed before a name leads to it, and names before the next thing is done."""
    steps = []
    monkeypatch.setattr(os, "fsync", lambda handle: steps.append(Path(f"/proc/self/fd/{handle}").readlink()))
    replaced = os.replace

    def replace(source, target):
        steps.append("replace")
        replaced(source, target)

    monkeypatch.setattr(os, "replace", replace)
    write_json(tmp_path / "a.json", {})
    content, then, names = steps
    assert Path(content).name.startswith(".a.json.") and then == "replace" and Path(names) == tmp_path.resolve()


def test_one_process_at_a_time(tmp_path):
    script = "import sys; from pathlib import Path; from embrew.files.writing import claimed\n"
    script += "with claimed(Path(sys.argv[1]), 'training into'):\n  print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(FileExistsError, match="another process is x "), claimed(tmp_path / "run", "x"):
            pass
        other.kill()
    with claimed(tmp_path / "run", "training into"):
        pass


def test_clearing_up_never_takes_what_is_just_begun(tmp_path):
    """Between the making of a temporary folder and its lock, another process could take it for one of a killed one."""
    stop = threading.Event()

    def clear():
        while not stop.is_set():
            recover_all(tmp_path)
            remove_leftovers(tmp_path / "file")

    with ThreadPoolExecutor(4) as pool:
        clearing = [pool.submit(clear) for _ in range(4)]
        try:
            for number in range(20):
                with atomic_folder(tmp_path / "folder", marker="m", overwrite=True) as out:
                    (out / "m").write_text(str(number))
                with atomic_path(tmp_path / "file") as out:
                    out.write_text(str(number))
        finally:
            stop.set()
        for done in clearing:
            done.result(timeout=60)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(tmp_path):
    """Files of the old one and of the new one together are neither."""
    folder = tmp_path / "folder"

    def write(content):
        with atomic_folder(folder, marker="m", overwrite=True) as out:
            (out / "m").write_text(content)
            (out / "other").write_text(content)

    write("0")
    reads = []

    def read(times):
        first = (folder / "m").read_text()
        reads.append(first)
        if len(reads) <= times:
            write(str(len(reads)))
        return first, (folder / "other").read_text()

    assert read(1) == ("0", "1"), "as anyone would read it"
    reads.clear()
    assert read_unchanged(folder, "m", lambda: read(2)) == ("2", "2") and len(reads) == 3
    with pytest.raises(OSError, match="was replaced 5 times while it was read; try again"):
        read_unchanged(folder, "m", lambda: read(99))
    with pytest.raises(ZeroDivisionError):
        read_unchanged(folder, "m", lambda: 1 // 0)
