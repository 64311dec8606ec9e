"""From a text to a labelled row of tokens."""
