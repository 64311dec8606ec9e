"""Training: the stages of a recipe, one after another, on Hugging Face's Trainer."""
