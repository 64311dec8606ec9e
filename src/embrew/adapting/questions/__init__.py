"""Questions for documents: written by a language model, checked by search."""

from embrew.adapting.questions.job import write_questions

__all__ = ["write_questions"]
