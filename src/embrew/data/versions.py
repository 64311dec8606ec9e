"""What differs between two versions of a corpus."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What an update found, compared with the older version.

    Attributes:
        kept: rows with an id that was there, with the same text.
        changed: rows with an id that was there, with another text.
        new: rows with a new id.
        dropped: ids that are no longer there.
        encoded: texts that this run encoded; texts that were there, also under another id, are not encoded again.
    """

    kept: int
    changed: int
    new: int
    dropped: int
    encoded: int = 0

    def __str__(self) -> str:
        return (
            f"{self.kept:,} rows kept, {self.changed:,} changed, {self.new:,} new, {self.dropped:,} dropped; "
            f"{self.encoded:,} texts encoded"
        )
