from tests.evaluation.conftest import bag_of_words, retrieval_folder, sts_folder  # noqa: F401
