"""Task instructions that define a method, word for word."""

# Learning to Compress: Unlocking the Potential of LLMs for Text Representation (arXiv 2511.17129), Table 3:
# instructions of the fine-tuning data (the E5 collection, as in LLM2Vec). Two instructions: both are used for that set.
LLM2COMP_TRAINING: dict[str, tuple[str, ...]] = {
    "DuReader": ("Given a Chinese search query, retrieve web passages that answer the question",),
    "ELI5": ("Provided a user question, retrieve the highest voted answers on Reddit ELI5 forum",),
    "FEVER": ("Given a claim, retrieve documents that support or refute the claim",),
    "HotpotQA": ("Given a multi-hop question, retrieve documents that can help answer the question",),
    "MIRACL": ("Given a question, retrieve Wikipedia passages that answer the question",),
    "MrTyDi": ("Given a question, retrieve Wikipedia passages that answer the question",),
    "MSMARCO Document": ("Given a web search query, retrieve relevant documents that answer the query",),
    "MSMARCO Passage": ("Given a web search query, retrieve relevant passages that answer the query",),
    "NLI": (
        "Given a premise, retrieve a hypothesis that is entailed by the premise",
        "Retrieve semantically similar text",
    ),
    "NQ": ("Given a question, retrieve Wikipedia passages that answer the question",),
    "QuoraDuplicates": (
        "Given a question, retrieve questions that are semantically equivalent to the given question",
        "Find questions that have the same meaning as the input question",
    ),
    "SQuAD": ("Retrieve Wikipedia passages that answer the question",),
    "T2Ranking": ("Given a Chinese search query, retrieve web passages that answer the question",),
    "TriviaQA": ("Retrieve Wikipedia passages that answer the question",),
}

# The same paper, Table 5: instructions of the evaluation data, by MTEB task name.
LLM2COMP_EVALUATION: dict[str, str] = {
    "ArguAna": "Given a claim, find documents that refute the claim",
    "Banking77Classification": "Given an online banking query, find the corresponding intents",
    "BiorxivClusteringS2S": "Identify the main category of Biorxiv papers based on the titles",
    "EmotionClassification": (
        "Classify the emotion expressed in the given Twitter message into one of the six emotions: "
        "anger, fear, joy, love, sadness, and surprise"
    ),
    "MedrxivClusteringS2S": "Identify the main category of Medrxiv papers based on the titles",
    "NFCorpus": "Given a question, retrieve relevant documents that best answer the question",
    "SciDocsRR": "Given a title of a scientific paper, retrieve the titles of other relevant papers",
    "SciFact": "Given a scientific claim, retrieve documents that support or refute the claim",
    "StackOverflowDupQuestions": "Retrieve duplicate questions from StackOverflow forum",
    "SICK-R": "Retrieve semantically similar text.",
    "SprintDuplicateQuestions": "Retrieve duplicate questions from Sprint forum",
    "STS17": "Retrieve semantically similar text.",
    "STSBenchmark": "Retrieve semantically similar text.",
    "TwentyNewsgroupsClustering": "Identify the topic or theme of the given news articles",
}
