"""Demonstrations of the evidence's tasks reach the texts that are asked for with their instruction, and no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from shots import Shots
from embrew import Encoder
from embrew.modeling.contexts import Context
from embrew.modeling.demonstrations import Demonstration, Demonstrations
from embrew.modeling.pooling import Pooling

settings = {"pooling": Pooling("last"), "attention": "causal", "demonstrations": Demonstrations()}
encoder = Encoder.from_pretrained("nano", template="{instruction}{text}{eos}", **settings)
shown = [Demonstration("What is rain?", "Water that falls.")]
form, asked, other = "{instruction}: ", "Answer the question, please", "Name the topic"
shots = Shots(encoder, form, {asked: shown})
texts = ["What is snow?", "Why is ice slippery?"]
encoder.add_context("same", Context("Answer the question, please: ", tuple(shown)))
for encode in ("encode", "encode_query"):
    got = getattr(shots, encode)(texts, prompt=asked)
    assert np.array_equal(got, getattr(encoder, encode)(texts, prompt_name="same"))
    plain = getattr(shots, encode)(texts, prompt=other)
    assert np.array_equal(plain, getattr(encoder, encode)(texts, prompt="Name the topic: "))
    assert abs(got - plain).max() > 1e-3
"""


def test_by_instruction():
    folder = str(Path(__file__).parents[2] / "benchmarks")
    done = subprocess.run([sys.executable, "-c", CODE, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
