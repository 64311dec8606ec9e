"""What evaluation and search use of an encoder, `embrew.Encoder` or `SentenceTransformer`: methods, vectors, hashes."""
