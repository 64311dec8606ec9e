"""A language model that reads labelled tokens: attention, adapters, hidden states."""
