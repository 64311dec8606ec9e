"""One row of a data file, and reports of rows that cannot be read."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

from embrew.files.reading import Place


class Record(NamedTuple):
    """One row, its file, and its number; `unit` is what is counted: lines or rows."""

    values: dict[str, Any]
    source: str
    number: int
    unit: str = "row"

    @property
    def where(self) -> str:
        """The row's position, for messages: `train.jsonl.gz, line 3`."""
        return f"{self.source}, {self.unit} {self.number}"

    def get(self, name: str) -> Any:
        """Return the value of a column (see `named`), or None where there is no such column."""
        try:
            column = named(self.values, name)
        except ValueError as error:
            raise ValueError(f"{self.where}: {error}") from error
        return None if column is None else self.values[column]


class Bad(NamedTuple):
    """Report of a row or file that cannot be read.

    Attributes:
        source: the file.
        number: the line or row, or the last one before it; 0 for the file itself.
        where: file and number, for messages.
        reason: why, and what to do.
        rest_lost: the file itself is broken, and an unknown number of rows follows that cannot be read.
    """

    source: str
    number: int
    where: str
    reason: str
    rest_lost: bool = False


def bad(path: Place, number: int, reason: str, *, unit: str = "line", rest_lost: bool = False) -> Bad:
    """Return the report of one row that cannot be read."""
    return Bad(str(path), number, f"{path}, {unit} {number}", reason, rest_lost)


def broken(path: Place, number: int, reason: str, *, unit: str = "line") -> Bad:
    """Return the report of a file that cannot be read after row `number`."""
    return Bad(str(path), number, f"{path}, after {unit} {number}", reason, rest_lost=True)


def stop(item: Bad) -> NoReturn:
    """Raise a report as an error.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{item.where}: {item.reason}")


def same_name(columns: Iterable[str], name: str) -> list[str]:
    """Return the columns with this name; upper and lower case and white space at the ends do not count."""
    lower = name.lower()
    return [column for column in columns if column == name or column.strip().lower() == lower]


def named(values: Mapping[str, Any], name: str) -> str | None:
    """Return the column with this name (see `same_name`), or None.

    Raises:
        ValueError: several columns have it.
    """
    found = same_name(values, name)
    if len(found) > 1:
        raise ValueError(f"the columns {' and '.join(map(repr, found))} could both be {name!r}; rename or remove one")
    return found[0] if found else None
