"""From a folder of documents and some questions to an encoder of that domain, and a report of what it is worth."""

from embrew.domain.run import Settings, run

__all__ = ["Settings", "run"]
