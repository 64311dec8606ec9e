"""A server for any encoder: the APIs of OpenAI and of Text Embeddings Inference."""
