"""What a run measures and writes down: scores within stages, `run.json`, log lines, facts for the model card."""
