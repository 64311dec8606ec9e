"""peft and bitsandbytes in one environment: nothing imports bitsandbytes unless 4 bits are asked for."""

import os
import subprocess
import sys

import pytest

from tests.conftest import wide_model

PLAIN = """
import sys
import embrew
from transformers import Trainer  # imports peft
model, out = sys.argv[1:3]
encoder = embrew.Encoder.from_pretrained(model, pooling="mean", dtype="float32")
encoder.backbone.add_lora({"r": 4})
encoder.save_pretrained(out + "/saved")
encoder = embrew.Encoder.from_pretrained(out + "/saved", merge_adapter=False)
embrew.export_encoder(encoder, out + "/export")
"""
LATER = """
assert sys.modules.get("bitsandbytes", 0) == 0
from peft.import_utils import is_bnb_4bit_available, is_bnb_available
assert not is_bnb_available() and not is_bnb_4bit_available()
import bitsandbytes
assert is_bnb_available() and is_bnb_4bit_available()
"""


def run(code, *arguments, path=""):
    """Run code in a new interpreter, which has `path` before its other packages; return what it wrote."""
    paths = os.pathsep.join(filter(None, [path, *sys.path]))
    environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_nothing_imports_it(tmp_path, tokenizer):
    """A package of that name that notes each import: in this process and in those that verify what was saved."""
    fake, notes = tmp_path / "packages" / "bitsandbytes", tmp_path / "notes"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text(f"open({str(notes)!r}, 'a').write('imported\\n')\n")
    metadata = fake.parent / "bitsandbytes-0.50.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: bitsandbytes\nVersion: 0.50.2\n")
    model = wide_model(tmp_path / "model", tokenizer)
    run(PLAIN + LATER, model, tmp_path, path=str(fake.parent))
    assert notes.read_text() == "imported\n", "once, by the script itself"
