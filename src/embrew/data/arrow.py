"""Read Parquet files, and the Arrow files that `datasets.save_to_disk` writes."""

from collections.abc import Iterator
from typing import Any

from embrew.data.record import Bad, Record, bad, broken
from embrew.files.reading import Place

BATCH = 1000


def read_arrow(path: Place) -> Iterator[Record | Bad]:
    """Yield the rows of a Parquet file or of an Arrow stream, by its suffix."""
    kind = "Parquet" if path.name.endswith(".parquet") else "Arrow"
    for number, values in _numbered(path, kind):
        if isinstance(values, dict):
            yield Record(values, str(path), number)
        elif isinstance(values, UnicodeDecodeError):
            yield bad(path, number, f"not valid UTF-8 ({values.reason}); write the file again", unit="row")
        else:
            said = " ".join(str(values).split())
            yield broken(path, number, f"broken {kind} file ({said}); write it again", unit="row")


def _numbered(path: Place, kind: str) -> Iterator[tuple[int, dict[str, Any] | OSError | ValueError]]:
    """Yield numbered rows; for a row that is not UTF-8, and for the rest of a broken file, the error."""
    number = 0
    try:
        for batch in _parquet_batches(path) if kind == "Parquet" else _arrow_batches(path):
            try:
                rows = batch.to_pylist()
            except UnicodeDecodeError:
                rows = [_row(batch, i) for i in range(len(batch))]
            for values in rows:
                number += 1
                yield number, values
    except (ConnectionError, PermissionError):
        raise
    except (OSError, ValueError) as error:  # pyarrow's own errors are among these
        yield number, error


def _parquet_batches(path: Place) -> Iterator[Any]:
    """Yield the batches of a Parquet file; pages are compared with checksums, if the writer stored them."""
    import pyarrow.parquet as pq

    with (
        path.open("rb") as opened,
        pq.ParquetFile(opened, page_checksum_verification=True) as file,
    ):  # if the writer stored checksums
        yield from file.iter_batches(batch_size=BATCH)


def _arrow_batches(path: Place) -> Iterator[Any]:
    import pyarrow as pa

    with pa.PythonFile(path.open("rb")) as file, pa.ipc.open_stream(file) as stream:
        for batch in stream:
            batch.validate(full=True)
            for start in range(0, len(batch), BATCH):
                yield batch.slice(start, BATCH)


def _row(batch: Any, i: int) -> dict[str, Any] | UnicodeDecodeError:
    try:
        row: dict[str, Any] = batch.slice(i, 1).to_pylist()[0]
    except UnicodeDecodeError as error:
        return error
    return row
