"""Open a folder or file: an encoder of embrew, or the files of a runtime."""

from __future__ import annotations

from pathlib import Path

from embrew.encoder import Encoder
from embrew.parity import Kind
from embrew.runtimes.registry import RUNTIMES
from embrew.runtimes.runtime import OpenedModel, OpenedRuntime

STOCK = "sentence-transformers"
FILES: dict[str, tuple[str, ...]] = {
    "embrew": ("embrew.json", "run.json"),
    **{name: runtime.files for name, runtime in RUNTIMES.items() if runtime.files},
}
"""Files by which a folder or file is known; of an export for several runtimes, Sentence-Transformers first."""


def open_folder(name: str, *, kind: Kind | None) -> OpenedRuntime:
    """Open a folder or file.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is of no kind, or cannot be opened.
    """
    path = Path(name)
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {name}; give one, or an address that begins with http://")
    if kind is not None and kind not in FILES:
        raise ValueError(f"--kind {kind} is a server, and {name} is no address; give http://HOST:PORT")
    for candidate, patterns in FILES.items() if kind is None else ((kind, FILES[kind]),):
        if path.is_file():
            files = [path] if kind or any(path.match(pattern) for pattern in patterns) else []
        else:
            files = [file for pattern in patterns for file in sorted(path.glob(pattern))]
        if files or kind == STOCK:
            return _open(path, candidate, files)
    expected = "a folder of Sentence-Transformers, embrew or OpenVINO, a .gguf or .onnx file, or an address"
    what = f"has no {' or '.join(FILES[kind])}" if kind else "is nothing that vectors can be compared with"
    raise ValueError(f"{path} {what}; give {expected}")


def _open(path: Path, kind: str, files: list[Path]) -> OpenedRuntime:
    if kind == "embrew":
        # Learned tokens have other ids than in an export, so that ids are not compared.
        return OpenedModel(path, Encoder.from_pretrained(path, merge_adapter=True), "embrew")
    open_files = RUNTIMES[kind].open
    assert open_files is not None  # it has files
    if kind == STOCK:
        return open_files(path)
    if len(files) > 1:
        raise ValueError(f"{path} has {', '.join(file.name for file in files)}; give one file")
    return open_files(files[0])
