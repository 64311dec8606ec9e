"""Read data row by row: JSON Lines, plain text, CSV, Parquet, folders of them, and data sets of the Hugging Face Hub.

Reading is strict. A row that cannot be read stops the run with the file, the line and what to do; nothing is skipped,
unless a caller takes what is bad itself (`on_bad`).
"""

import csv
import gzip
import json
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

SUFFIXES = (".jsonl", ".jsonl.gz", ".txt", ".txt.gz", ".parquet")
_LINES = SUFFIXES[:4]
_BY_LINE = (*_LINES, ".csv")
SPLITS = ("train", "dev", "validation", "valid", "test")
_SHARD = r"(-\d+(-of-\d+)?)?"  # train-00000.jsonl.gz, train-00000-of-00002.parquet


class Record(NamedTuple):
    """One row and where it came from."""

    values: dict[str, Any]
    source: str
    number: int

    @property
    def where(self) -> str:
        """The row's place, for messages: `train.jsonl.gz, line 3`."""
        return f"{self.source}, {'line' if self.source.endswith((*_LINES, '.csv')) else 'row'} {self.number}"


class Bad(NamedTuple):
    """Something that cannot be read: in which file, at or after which line or row (0: the file itself), and why."""

    source: str
    number: int
    where: str
    reason: str


OnBad = Callable[[Bad], None]


def stop(bad: Bad) -> None:
    """What is done about something bad by default.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{bad.where}: {bad.reason}")


def expand(path: str | Path) -> str:
    """Replace `$NAME` and `${NAME}` by environment variables, and a leading `~` by the home folder.

    Examples:
        >>> os.environ["CORPORA"] = "/data"
        >>> expand("$CORPORA/STSB")
        '/data/STSB'
    """
    text = str(path)
    for name in re.findall(r"\$\{?(\w+)\}?", text):
        if not os.environ.get(name):
            raise ValueError(f"{text!r} needs the environment variable {name}, which is not set; export {name}=FOLDER")
    text = os.path.expandvars(text)
    return str(Path(text).expanduser()) if text.startswith("~") else text  # Path would drop the "./" of a local path


def public_name(path: str | Path) -> tuple[str, bool]:
    """A data set's name without the folders of this machine, and whether it is one of the Hub."""
    text = expand(path)
    return (Path(text).resolve().name, False) if Path(text).exists() else (text, True)


def read(
    path: str | Path, *, name: str | None = None, split: str = "train", revision: str | None = None
) -> Iterator[Record]:
    """Rows of a file, of a folder's `split`, or of a data set on the Hub."""
    text = expand(path)
    local = Path(text)
    if not local.exists():
        yield from _read_hub(text, name, split, revision)
        return
    if name is not None or revision is not None:
        logger.warning("%s is local: name=%r and revision=%r have no effect", text, name, revision)
    for file in [local] if local.is_file() else split_files(local, split):
        yield from read_file(file)


def read_file(path: Path, *, on_bad: OnBad = stop, max_bytes: int | None = None) -> Iterator[Record]:
    """Rows of one file, by its suffix. Blank lines hold no row; a line of a text file becomes `{"text": line}`.

    Args:
        path: the file.
        on_bad: told what cannot be read. If it returns, reading goes on with the next row; what a broken gzip or
            Parquet file still holds is lost.
        max_bytes: a longer line is bad, and is not held in memory.
    """
    if path.name.endswith(".parquet"):
        yield from _read_parquet(path, on_bad)
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        for number, line in _lines(path, on_bad, max_bytes):
            try:
                values = _parse(line)
            except ValueError as error:
                on_bad(Bad(str(path), number, f"{path}, line {number}", str(error)))
            else:
                yield Record(values, str(path), number)
    elif path.name.endswith((".txt", ".txt.gz")):
        for number, line in _lines(path, on_bad, max_bytes):
            yield Record({"text": line.removesuffix("\n").removesuffix("\r")}, str(path), number)
    elif path.name.endswith(".csv"):
        yield from _read_csv(path, on_bad)
    else:
        known = ", ".join((*SUFFIXES, ".csv"))
        raise ValueError(f"{path}: cannot read this kind of file; write it as one of {known}")


def stem(path: Path) -> str:
    """File name without the data suffix: `train.jsonl.gz` gives `train`."""
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if path.name.endswith(suffix):
            return path.name.removesuffix(suffix)
    return path.stem


def data_files(folder: Path) -> list[Path]:
    """The readable files of a folder (or of its `data/` folder, as on the Hub), sorted by name."""
    for place in (folder, folder / "data"):
        files = sorted(file for file in place.glob("*") if file.name.endswith(SUFFIXES) and file.is_file())
        if files:
            return files
    raise FileNotFoundError(f"{folder} holds no data file; expected files ending in {', '.join(SUFFIXES)}")


def splits(folder: Path) -> list[str]:
    """Names of the splits a folder holds: `train-00000.jsonl` and `dev.jsonl` give `["dev", "train"]`."""
    return sorted({re.sub(_SHARD + "$", "", stem(file)) for file in data_files(folder)})


def find_file(folder: Path, name: str) -> Path | None:
    """`name.jsonl` or `name.jsonl.gz` in a folder."""
    return next((file for suffix in (".jsonl", ".jsonl.gz") if (file := folder / f"{name}{suffix}").is_file()), None)


def split_files(folder: Path, split: str) -> list[Path]:
    """Files of `split` in a folder; a folder whose files carry no split name at all is one `train` split."""
    files = data_files(folder)
    chosen = [file for file in files if re.fullmatch(re.escape(split) + _SHARD, stem(file))]
    if chosen:
        return chosen
    if split == "train" and not set(splits(folder)) & set(SPLITS):
        return files
    raise FileNotFoundError(f"{folder} has no split {split!r}; it has {', '.join(splits(folder))}")


def _lines(path: Path, on_bad: OnBad, max_bytes: int | None) -> Iterator[tuple[int, str]]:
    """Numbered non-blank lines of a UTF-8 file, split at line feeds only."""
    number = 0
    try:
        with gzip.open(path) if path.name.endswith(".gz") else open(path, "rb") as file:
            for number, raw in enumerate(file if max_bytes is None else _bounded(file, max_bytes), start=1):
                where = f"{path}, line {number}"
                if raw is None:
                    reason = f"longer than {max_bytes:,} bytes; split the text, or leave it out"
                    on_bad(Bad(str(path), number, where, reason))
                    continue
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    on_bad(Bad(str(path), number, where, f"not valid UTF-8 ({error.reason}); convert to UTF-8"))
                    continue
                if line.strip():
                    yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = f"broken gzip file ({error}); copy or download it again"
        on_bad(Bad(str(path), number, f"{path}, after line {number}", reason))


def _bounded(file: Any, max_bytes: int) -> Iterator[bytes | None]:
    """Lines of a file; None in place of one that is too long, whose end is read past in pieces."""
    while raw := file.readline(max_bytes + 1):
        if len(raw) <= max_bytes or raw.endswith(b"\n"):
            yield raw
            continue
        while (rest := file.readline(1 << 20)) and not rest.endswith(b"\n"):
            pass
        yield None


def _parse(line: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
        if "\\u" in line:  # an escaped half of a surrogate pair parses, but is no text that can be written again
            json.dumps(values, ensure_ascii=False).encode("utf-8")
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error}); mend or remove the line") from error
    except UnicodeEncodeError as error:
        raise ValueError("holds a lone surrogate (\\ud800..\\udfff); mend or remove the line") from error
    if not isinstance(values, dict):
        raise ValueError(f'holds a {type(values).__name__}, not an object; write {{"column": value}}')
    return values


def _read_csv(path: Path, on_bad: OnBad) -> Iterator[Record]:
    """Rows under a header line, all values text; an empty cell is None. Folders are not searched for such files."""
    number = 1
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restkey="", strict=True)
            for values in reader:
                number = reader.line_num
                if "" in values or None in values.values():
                    more = "more" if "" in values else "fewer"
                    reason = (
                        f"{more} cells than the {len(reader.fieldnames or ())} columns of the header; mend the line"
                    )
                    on_bad(Bad(str(path), number, f"{path}, line {number}", reason))
                    continue
                yield Record({name: value or None for name, value in values.items()}, str(path), number)
    except UnicodeDecodeError as error:
        reason = f"not valid UTF-8 ({error.reason}); convert to UTF-8"
        on_bad(Bad(str(path), number, f"{path}, after line {number}", reason))
    except csv.Error as error:
        on_bad(Bad(str(path), number, f"{path}, after line {number}", f"not valid CSV ({error}); mend the line"))


def _read_parquet(path: Path, on_bad: OnBad) -> Iterator[Record]:
    for number, values in _parquet_rows(path):
        if isinstance(values, dict):
            yield Record(values, str(path), number)
        elif isinstance(values, UnicodeDecodeError):
            reason = f"not valid UTF-8 ({values.reason}); write the file again"
            on_bad(Bad(str(path), number, f"{path}, row {number}", reason))
        else:
            reason = f"broken Parquet file ({values}); write it again"
            on_bad(Bad(str(path), number, f"{path}, after row {number}", reason))


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | OSError | ValueError]]:
    """Numbered rows; in place of one that is no UTF-8, and of all that follows a break, the error."""
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1000):
                try:
                    rows = batch.to_pylist()
                except UnicodeDecodeError:
                    rows = [_arrow_row(batch, i) for i in range(len(batch))]
                for values in rows:
                    number += 1
                    yield number, values
    except (OSError, ValueError) as error:  # pyarrow's own errors are among these
        yield number, error


def _arrow_row(batch: Any, i: int) -> dict[str, Any] | UnicodeDecodeError:
    try:
        row: dict[str, Any] = batch.slice(i, 1).to_pylist()[0]
    except UnicodeDecodeError as error:
        return error
    return row


def _read_hub(path: str, name: str | None, split: str, revision: str | None) -> Iterator[Record]:
    if not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", path) or path.endswith(SUFFIXES):
        raise FileNotFoundError(f"no file or folder {path!r}")
    import datasets

    try:
        dataset = datasets.load_dataset(path, name, split=split, revision=revision)
    except (ConnectionError, FileNotFoundError) as error:
        raise FileNotFoundError(f"{path!r} is no file or folder here and no data set of the Hub: {error}") from error
    source = " ".join(part for part in (path, name, split) if part)
    for number, values in enumerate(dataset, start=1):
        yield Record(values, source, number)
