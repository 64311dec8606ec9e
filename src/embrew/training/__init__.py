"""Training of a recipe's stages with Hugging Face's Trainer."""
