"""Kinds of evaluation task, and their registry."""

from embrew.evaluation.kinds.classification import CLASSIFICATION, CLUSTERING
from embrew.evaluation.kinds.generation import GENERATION
from embrew.evaluation.kinds.rag import RAG
from embrew.evaluation.kinds.retrieval import RERANKING, RETRIEVAL
from embrew.evaluation.kinds.similarity import PAIR_CLASSIFICATION, STS, SUMMARIZATION
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
