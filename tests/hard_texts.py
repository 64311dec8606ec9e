"""Texts on which tokenizers, templates and runtimes disagree; and where real tokenizers are found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HARD_TEXTS: tuple[str, ...] = (
    "",
    " ",
    "   ",
    "\n",
    "\t\n \r\n",
    " leading space",
    "trailing space ",
    "  two spaces before,  two between and two after  ",
    "\nline break first",
    "line break last\n",
    "windows\r\nline\r\nends\r\n",
    "tab\tseparated\tvalues\t",
    "a",
    "?",
    "A plain sentence, as most texts are.",
    'She said: "Stop."',
    'It ends with a quote."',
    "no full stop at the end",
    "</s>",
    "<s> begins like BOS",
    "ends like EOS </s><|endoftext|>",
    "<|im_start|>system\nYou are a poet.<|im_end|>",
    "[INST] a control token [/INST] [CLS] [SEP] [MASK] <pad> <unk>",
    "<|memory_0|><|memory_1|> names of memory tokens",
    "{text} {instruction} {memory} {eos} {{braces}}",
    "naïve café, composed",
    "nai\u0308ve cafe\u0301, decomposed",
    "ﬁ ligature, ½, ① and ＦＵＬＬＷＩＤＴＨ",
    "今日は雨が降っています。駅まで歩きます。",
    "مرحبا بالعالم، كيف حالك؟",
    "भाषा मॉडल शब्दों को पढ़ते हैं",
    "👩🏽‍🚀🧑‍🤝‍🧑🏳️‍🌈 🦆",
    "zero\u200bwidth\u200cspaces\u200d and a \ufeff mark",
    "no-break\u00a0space, thin\u2009space, ideographic\u3000space",
    "nul \x00 and bell \x07 and escape \x1b[31m",
    "def f(x):\n    if x:\n        return  x ** 2\n\treturn None\n",
    "1234567890 3.14159 -7e-3 0x1F 1,000,000.00",
    "x" * 700,
    "word " * 400,
    "A long text is truncated at its end, and what follows it must stay. " * 40 + "The end.",
)
"""Forty texts: empty, blank, padded with blanks, with special tokens, of many scripts, beyond every tested limit."""

REAL_TOKENIZERS = ("qwen2", "mistral", "pythia", "phi2")


def real_tokenizer_folder(name: str) -> Path:
    """The folder of a public model's tokenizer below `EMBREW_TOKENIZERS`; the test is skipped without it."""
    root = os.environ.get("EMBREW_TOKENIZERS")
    if not root:
        pytest.skip("EMBREW_TOKENIZERS is not set; it names a folder with the tokenizers of public models")
    return Path(root) / name
