"""A disk that refuses a write: one line names the target, what was there is unchanged, and the next run succeeds."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial as partial_of
from pathlib import Path

import pytest

from tests.cli.scene import ask, write_rest, write_small
from tests.killing import content, partial
from tests.test_disk import file_limit

pytestmark = pytest.mark.slow

VERBS = {
    "merge": "merge encoder DIR/target --verify off --overwrite",
    "export": "export plain DIR/target --verify off --overwrite",
    "search": "search plain question --index DIR/target --build beir/corpus.jsonl --overwrite",
    "table": "table results --output DIR/target.md",
    "mine": "data mine plain pairs.jsonl DIR/target.jsonl --relative-margin 0 --overwrite",
    "encode": "encode plain texts.parquet DIR/target",
    "evaluate": "evaluate plain --data sts.jsonl.gz --kind sts --output DIR/target --overwrite",
    "spectrum": "analyze spectrum plain --data texts.parquet --output DIR/target --overwrite",
    "context": "context add DIR/encoder other --instruction x --demos demos.json --overwrite",
    "train": "train recipe.yaml -o DIR/target --resume",
    "domain": "domain docs -o DIR/target --pairs pairs.jsonl --no-export --model model",
}
REPLACES = ("merge", "export", "search", "table", "mine", "spectrum", "context")  # what is there, in one step


@pytest.fixture(scope="module")
def scene(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("full")
    write_small(place, model_folder("llama"))
    write_rest(place)
    return place


def check(
    verb: str, place: Path, target: Path, refused: Callable[[], AbstractContextManager[None]], named: str | None = None
) -> bool:
    """Run a verb where the disk refuses; whether it did so. Then what was there is there, and nothing else.

    `named`: the folder that the error names, for `target`; adapters are read by way of the system's temporary one.
    """
    before = content(target)
    with refused():
        done = ask(place, *VERBS[verb].replace("DIR", str(target)).split())
    if done.exit_code == 0:
        return False
    assert isinstance(done.exception, SystemExit), (done.exception, done.output)
    assert (done.exit_code, "Traceback" in done.output) == (1, False), done.output
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.stderr.splitlines()[-1] == error
    assert f" while writing {named or target}" in error and "give the same command again" in error, error
    assert not partial(target)
    if verb in REPLACES:
        assert content(target) == before
    return True


@pytest.mark.parametrize("verb", VERBS)
def test_files_that_may_not_grow(verb: str, scene: Path, tmp_path: Path) -> None:
    """The system refuses the first write that goes too far, of whichever library; later ones the higher the limit."""
    if verb == "context":
        shutil.copytree(scene / "encoder", tmp_path / "encoder")
    sizes = (0, 100, 1000, 3000, 30_000)
    refused = [check(verb, scene, tmp_path, partial_of(file_limit, size), tempfile.gettempdir()) for size in sizes]
    assert any(refused)
    again(verb, scene, tmp_path)


@pytest.mark.parametrize("verb", VERBS)
def test_a_full_file_system(verb: str, scene: Path, tmp_path: Path) -> None:
    """A real file system without space, at a later write each time, until there is enough."""
    with disk(tmp_path / "disk", 4_000_000):
        place = tmp_path / "disk" / "here"
        place.mkdir()
        if verb == "context":
            shutil.copytree(scene / "encoder", place / "encoder")
        elif verb in REPLACES:
            again(verb, scene, place)
        refused = 0
        for space in (0, 4, 12, 24, 60, 100, 160):  # KiB
            with filled(tmp_path / "disk", space):
                refused += check(verb, scene, place, nullcontext)
        assert refused >= 1
        again(verb, scene, place)


def again(verb: str, scene: Path, place: Path) -> None:
    done = ask(scene, *VERBS[verb].replace("DIR", str(place)).split())
    assert done.exit_code == 0, done.output
    assert not partial(place)


@contextmanager
def filled(disk: Path, space: int) -> Iterator[None]:
    """A disk with that many KiB of space."""
    free = os.statvfs(disk)
    with (disk / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(free.f_bavail * free.f_frsize - space * 1024, 1))
    try:
        yield
    finally:
        (disk / "filler").unlink()


@contextmanager
def disk(place: Path, size: int) -> Iterator[None]:
    """A file system of that many bytes at `place`."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("this user cannot mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
