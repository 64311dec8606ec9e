"""Figures about encoders, one module per analysis.

Each begins with its formula and source. A function returns a result as a frozen dataclass, whose `summary()` has the
figures for JSON where they are more than its fields; a function of `plots` draws the results of several models in one
picture. `input_texts` and `qa` read what is analysed.
"""
