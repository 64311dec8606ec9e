"""Read CSV and TSV files with a header line."""

import csv
import io
import logging
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain

from embrew.data.lines import GZIP_ERRORS, broken_gzip, open_bytes
from embrew.data.record import Bad, Record, bad, broken
from embrew.files.reading import Place

logger = logging.getLogger(__name__)
MAX_CELL = 1 << 30  # characters; Python's own limit is 131,072, less than some documents have
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def read_table(path: Place) -> Iterator[Record | Bad]:
    """Yield the rows under a header line; values are text, an empty cell is None. Columns without a name are left out.

    The separator is the one between the names of the header: commas, semicolons or tabs.
    """
    number = 1
    try:
        with io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            separator = _separator(header, path)
            csv.field_size_limit(MAX_CELL)
            reader = csv.DictReader(chain([header], file), delimiter=separator, strict=True)
            names = list(reader.fieldnames or ())
            twice = next((name for name in names if name and names.count(name) > 1), None)
            if twice is not None:
                yield broken(path, 1, f"the header has the column {twice!r} twice; rename or remove one")
                return
            for values in reader:
                number = reader.line_num
                if None in values or None in values.values():
                    more = "more" if None in values else "fewer"
                    yield bad(
                        path, number, f"{more} cells than the {len(names)} columns of the header; repair the line"
                    )
                    continue
                cells = {name: value or None for name, value in values.items() if name}
                yield Record(cells, str(path), number, "line")
    except GZIP_ERRORS as error:
        yield broken_gzip(path, number, error)
    except UnicodeDecodeError as error:
        yield broken(path, number, f"not valid UTF-8 ({error.reason}); convert to UTF-8")
    except csv.Error as error:
        yield broken(path, number, f"not valid CSV ({error}); repair the line")


def _separator(header: str, path: Place) -> str:
    """Return the separator that the header has most often outside quotes, by default that of the file's suffix."""
    default = "\t" if ".tsv" in path.suffixes else ","
    plain = re.sub(r'"[^"]*"', "", header)
    found = max(SEPARATORS, key=lambda separator: (plain.count(separator), separator == default))
    if found != default:
        _say(str(path), SEPARATORS[found])
    return found


@cache
def _say(path: str, separators: str) -> None:
    """Log it once: a file is read several times in a run."""
    logger.info("%s: columns are separated by %s, as in its header line", path, separators)
