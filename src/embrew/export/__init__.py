"""Export: an encoder as a folder that other tools open."""
