"""From hidden states to one vector per text, in batches."""
