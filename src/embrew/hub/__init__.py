"""Saved encoders and exports on the Hugging Face Hub."""
