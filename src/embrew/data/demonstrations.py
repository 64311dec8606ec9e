"""Read demonstrations of a task from a file: pairs of a query and a text that answers it.

The file is JSON Lines, Parquet, a JSON array, or CSV or TSV with a header, or the only such file of a folder. The
demonstration files of bge-en-icl can be read (FlagOpen/FlagEmbedding,
`research/llm_dense_retriever/examples/bge-en-icl`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from embrew.data.formats import SUFFIXES, TABLES, read_file
from embrew.data.reading import expand
from embrew.settings.encoder import Demonstration

READ = (*SUFFIXES[:2], ".parquet", *TABLES)
QUERY = ("query", "anchor", "question", "text", "sentence1", "sent1")
PASSAGE = ("response", "passage", "positive", "pos", "answer", "label", "sentence2", "sent2")
INSTRUCTION = ("instruct", "instruction")


def read_demonstrations(path: str | Path) -> tuple[tuple[Demonstration, ...], str | None]:
    """Return the demonstrations of a file, or of the only file of a folder, and their instruction, if there is one.

    A row has `query` (or `text`, …) and `response` (or `pos`, `label`, …): the passage, or a list (its first).

    Raises:
        FileNotFoundError: there is no such file, or no file in the folder.
        ValueError: rows without a query or passage, or with different instructions; another kind of file.
    """
    file = _file(Path(expand(path)))
    pairs, instructions = [], []
    for number, values in enumerate(_rows(file), start=1):
        where = f"{file}, demonstration {number}"
        pairs.append(Demonstration(_text(values, QUERY, where), _text(values, PASSAGE, where)))
        instructions.append(next((values[name] for name in INSTRUCTION if values.get(name)), None))
    if not pairs:
        raise ValueError(f"{file} holds no demonstrations")
    different = sorted({str(instruction) for instruction in instructions})
    if len(different) > 1:
        raise ValueError(f"{file}: demonstrations of one task have one instruction; here are {', '.join(different)}")
    return tuple(pairs), instructions[0]


def _file(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {path}")
    if path.is_file():
        return path
    files = sorted(file for file in path.glob("[!.]*") if file.is_file() and file.name.endswith(READ))
    if not files:
        raise FileNotFoundError(f"{path} holds no file of demonstrations; expected one of {', '.join(READ)}")
    if len(files) > 1:
        raise ValueError(f"{path} holds several files ({', '.join(file.name for file in files)}); give one of them")
    return files[0]


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    if not path.name.endswith(READ):
        raise ValueError(f"{path}: cannot read this kind of file; write it as one of {', '.join(READ)}")
    for record in read_file(path):
        yield {column.strip().lower(): value for column, value in record.values.items()}


def _text(values: Mapping[str, Any], names: tuple[str, ...], where: str) -> str:
    name = next((name for name in names if values.get(name) is not None), None)
    if name is None:
        columns = ", ".join(str(column) for column in values)
        raise ValueError(f"{where}: none of the columns {', '.join(names)}; there are {columns}")
    value = values[name]
    value = value[0] if isinstance(value, list) and value else value
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: {name} is {value!r}; write a text that is not empty")
    return value
