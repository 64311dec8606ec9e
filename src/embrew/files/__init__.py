"""How embrew writes, checks, locks and reads files and folders."""
