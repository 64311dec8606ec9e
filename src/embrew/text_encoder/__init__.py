"""The interface that evaluation and search use, of `embrew.Encoder` and `SentenceTransformer`; checks and hashes."""
