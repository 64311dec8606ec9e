"""A write that the system refuses, by each library that writes: one error, which names the target."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

from embrew.files.writing import DiskError, atomic_path, write_json, writing_to


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file of this process may become larger; writing more fails in the system, whoever writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def with_faiss(path: Path) -> None:
    index = faiss.IndexFlatIP(64)
    index.add(np.ones((100, 64), dtype=np.float32))
    faiss.write_index(index, str(path))


WRITERS: dict[str, Callable[[Path], object]] = {
    "python": lambda path: path.write_text("x" * 10_000),
    "safetensors": lambda path: safetensors.torch.save_file({"x": torch.ones(1000)}, path),
    "parquet": lambda path: pq.write_table(pa.table({"x": np.random.default_rng(0).random(10_000)}), path),
    "faiss": with_faiss,
    "torch": lambda path: torch.save({"x": torch.ones(1000)}, path),
    "numpy": lambda path: np.ones(1000).tofile(path),  # as the gguf package writes tensors
}


@pytest.mark.parametrize("writer", WRITERS)
def test_the_target_is_named(writer, tmp_path):
    target = tmp_path / "target"
    target.write_text("before")
    with file_limit(600), pytest.raises(DiskError) as raised, atomic_path(target) as temporary:
        WRITERS[writer](temporary)
    assert raised.value.errno in ((errno.EFBIG, errno.EIO) if writer in ("torch", "numpy") else (errno.EFBIG,))
    assert f" while writing {target}; " in str(raised.value)
    assert target.read_text() == "before" and list(tmp_path.iterdir()) == [target]


def test_a_disk_without_space(tmp_path):
    """`/dev/full` refuses as a full disk does."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with pytest.raises(DiskError) as raised, writing_to(tmp_path / "a.json"), open("/dev/full", "w") as file:
        file.write("x")
        file.flush()
    said = str(raised.value)
    assert said.startswith(f"No space left on device while writing {tmp_path / 'a.json'}; what was finished before is")
    assert said.endswith("free some space and give the same command again")


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EROFS, errno.EIO])
def test_other_errors_of_disks(number, tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, "as the system says")

    monkeypatch.setattr("embrew.files.writing.flush", refuse)
    with pytest.raises(DiskError, match="while writing .*a.json; what was finished") as raised:
        write_json(tmp_path / "a.json", {})
    assert raised.value.errno == number and list(tmp_path.iterdir()) == []
