"""Task instructions that define a method, verbatim."""

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

# Embedding-based In-Context Prompt Training for Enhancing LLMs as Text Encoders, Table 11: instructions of MTEB's 56
# English tasks.
EPIC_EVALUATION: dict[str, str] = {
    "AmazonCounterfactualClassification": (
        "Classify a given Amazon customer review text as either counterfactual or not-counterfactual."
    ),
    "AmazonPolarityClassification": "Classify Amazon reviews into positive or negative sentiment",
    "AmazonReviewsClassification": "Classify the given Amazon review into its appropriate rating category",
    "ArguAna": "Given a claim, find documents that refute the claim",
    "ArxivClusteringP2P": "Identify the main and secondary category of Arxiv papers based on the titles and abstracts.",
    "ArxivClusteringS2S": "Identify the main and secondary category of Arxiv papers based on the titles",
    "AskUbuntuDupQuestions": "Retrieve duplicate questions from AskUbuntu forum",
    "BIOSSES": "Retrieve semantically similar text.",
    "Banking77Classification": "Given a online banking query, find the corresponding intents",
    "BiorxivClusteringP2P": "Identify the main category of Biorxiv papers based on the titles and abstracts",
    "BiorxivClusteringS2S": "Identify the main category of Biorxiv papers based on the titles",
    "CQADupstackRetrieval": (
        "Given a question, retrieve detailed question descriptions from Stackexchange that are "
        "duplicates to the given question."
    ),
    "ClimateFEVER": "Given a claim about climate change, retrieve documents that support or refute the claim.",
    "DBPedia": "Given a query, retrieve relevant entity descriptions from DBPedia",
    "EmotionClassification": (
        "Classify the emotion expressed in the given Twitter message into one of the six emotions: "
        "anger, fear, joy, love, sadness, and surprise."
    ),
    "FEVER": "Given a claim, retrieve documents that support or refute the claim",
    "FiQA2018": "Given a financial question, retrieve user replies that best answer the question",
    "HotpotQA": "Given a multi-hop question, retrieve documents that can help answer the question",
    "ImdbClassification": "Classify the sentiment expressed in the given movie review text from the IMDB dataset.",
    "MSMARCO": "Given a web search query, retrieve relevant passages that answer the query",
    "MTOPDomainClassification": "Classify the intent domain of the given utterance in task-oriented conversation",
    "MTOPIntentClassification": "Classify the intent of the given utterance in task-oriented conversation",
    "MassiveIntentClassification": "Given a user utterance as query, find the user intents",
    "MassiveScenarioClassification": "Given a user utterance as query, find the user scenarios",
    "MedrxivClusteringP2P": "Identify the main category of Medrxiv papers based on the titles and abstracts",
    "MedrxivClusteringS2S": "Identify the main category of Medrxiv papers based on the titles",
    "MindSmallReranking": "Retrieve relevant news articles based on user browsing history",
    "NFCorpus": "Given a question, retrieve relevant documents that best answer the question",
    "NQ": "Given a question, retrieve Wikipedia passages that answer the question",
    "QuoraRetrieval": "Given a question, retrieve questions that are semantically equivalent to the given question.",
    "RedditClustering": "Identify the topic or theme of Reddit posts based on the titles",
    "RedditClusteringP2P": "Identify the topic or theme of Reddit posts based on the titles and posts",
    "SCIDOCS": "Given a scientific paper title, retrieve paper abstracts that are cited by the given paper",
    "SICK-R": "Retrieve semantically similar text.",
    "STS12": "Retrieve semantically similar text.",
    "STS13": "Retrieve semantically similar text.",
    "STS14": "Retrieve semantically similar text.",
    "STS15": "Retrieve semantically similar text.",
    "STS16": "Retrieve semantically similar text.",
    "STS17": "Retrieve semantically similar text.",
    "STS22": "Retrieve semantically similar text.",
    "STSBenchmark": "Retrieve semantically similar text.",
    "SciDocsRR": "Given a title of a scientific paper, retrieve the titles of other relevant papers",
    "SciFact": "Given a scientific claim, retrieve documents that support or refute the claim",
    "SprintDuplicateQuestions": "Retrieve duplicate questions from Sprint forum",
    "StackExchangeClustering": "Identify the topic or theme of StackExchange posts based on the titles",
    "StackExchangeClusteringP2P": "Identify the topic or theme of StackExchange posts based on the given paragraphs",
    "StackOverflowDupQuestions": "Retrieve duplicate questions from StackOverflow forum",
    "SummEval": "Given a news summary, retrieve other semantically similar summaries",
    "TRECCOVID": "Given a query on COVID-19, retrieve documents that answer the query",
    "Touche2020": "Given a question, retrieve detailed and persuasive arguments that answer the question",
    "ToxicConversationsClassification": "Classify the given comments as either toxic or not toxic",
    "TweetSentimentExtractionClassification": (
        "Classify the sentiment of a given tweet as either positive, negative, or neutral"
    ),
    "TwentyNewsgroupsClustering": "Identify the topic or theme of the given news articles",
    "TwitterSemEval2015": "Retrieve tweets that are semantically similar to the given tweet",
    "TwitterURLCorpus": "Retrieve tweets that are semantically similar to the given tweet",
}

# Following the Autoregressive Nature of LLM Embeddings via Compression and Alignment, section 3.3, by side of an
# encoder's prompts: I_next, with which the embedding of a query makes the model write what is looked for, and I_self,
# with which that of a text makes it write the text (the paper: "similar to" these). The public code has one string in
# place of both, for training on NLI and for evaluation.
AUTOREGEMBED_PAPER = {
    "query": "find documents that can answer this question",
    "document": "find sentences that are semantically similar to this text",
}
AUTOREGEMBED_CODE = dict.fromkeys(("query", "document"), "This sentence means in one word: “")

# ESE: Espresso Sentence Embeddings (arXiv 2402.14776), Table 4: what the generator of its retrieval-augmented answers
# is asked. The table does not show where lines end; here each part has a separate line.
ESE_RAG = (
    "As an advanced QA system, your role is to provide accurate and straightforward answers based on the provided "
    "context. Utilize the following information to answer the given question, directly output the straightforward "
    "answer, and do not explain it:\n"
    "Context: {context}.\n"
    "Question: {question}.\n"
    "Requirement: For 'yes/no' question, directly output 'yes' or 'no'. For the 'who' question, directly output the "
    "people's names. For the 'when' question, directly output the date or time, so on and so forth.\n"
    "Output:"
)

# by the name in a suite
EVALUATION_INSTRUCTIONS = {"llm2comp": LLM2COMP_EVALUATION, "epic": EPIC_EVALUATION}
