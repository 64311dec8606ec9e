"""The demonstration: a causal LM becomes a search engine for Python documentation, on this machine, offline.

`python -m embrew.demo --output runs/demo` collects the documentation of the Python packages installed here, trains
LLM2Comp on it (compress, unsupervised, supervised), scores every step on packages it has never seen, exports the
result and searches with it. A stopped run resumes when the command is given again.
"""
