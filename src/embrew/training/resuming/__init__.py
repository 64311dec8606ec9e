"""What lets a run resume: whole checkpoints, the settings and inputs of each stage, stages of other runs."""
