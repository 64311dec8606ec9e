"""Kinds of evaluation task: one module per kind, and their registry."""

from embrew.evaluation.kinds.classification import CLASSIFICATION
from embrew.evaluation.kinds.clustering import CLUSTERING
from embrew.evaluation.kinds.generation import GENERATION
from embrew.evaluation.kinds.pair_classification import PAIR_CLASSIFICATION
from embrew.evaluation.kinds.rag import RAG
from embrew.evaluation.kinds.reranking import RERANKING
from embrew.evaluation.kinds.retrieval import RETRIEVAL
from embrew.evaluation.kinds.sts import STS
from embrew.evaluation.kinds.summarization import SUMMARIZATION
from embrew.evaluation.task import TaskKind

# In the order in which a folder's columns are compared with them: the first kind that matches is taken.
KINDS: dict[str, TaskKind] = {
    kind.name: kind
    for kind in (
        STS,
        RETRIEVAL,
        PAIR_CLASSIFICATION,
        SUMMARIZATION,
        CLASSIFICATION,
        CLUSTERING,
        RERANKING,
        RAG,
        GENERATION,
    )
}
