"""Fixtures of evaluation tasks and of an encoder whose vectors are counts of words."""

from tests.evaluation.conftest import bag_of_words, retrieval_folder, sts_folder  # noqa: F401
