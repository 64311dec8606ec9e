"""Differences between two versions of a corpus."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Counts of an update, compared with the older version.

    Attributes:
        kept: rows with a known id and the same text.
        changed: rows with a known id and another text.
        new: rows with a new id.
        dropped: ids that the newer version lacks.
        encoded: texts that this run encoded; known texts, also under another id, are not encoded again.
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
