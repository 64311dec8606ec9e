"""The report of `embrew compare`: one HTML page that opens from disk, and the same numbers as CSV and JSON."""
