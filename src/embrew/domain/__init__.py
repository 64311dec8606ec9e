"""Train an encoder on a domain's documents and questions, and report its scores on held-out questions."""

from embrew.domain.run import Settings, run

__all__ = ["Settings", "run"]
