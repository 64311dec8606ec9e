"""`.ci/run` finds real data and real tokenizers beside the checkout; what the environment names comes first."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / ".ci" / "run"
NAMES = {"EMBREW_DATA": "data", "EMBREW_TOKENIZERS": "tokenizers"}


@pytest.mark.skipif(not RUN.exists(), reason="an unpacked sdist has no .ci")
@pytest.mark.parametrize(
    ("beside", "given", "seen"),
    [
        (["data", "tokenizers"], {}, {"EMBREW_DATA": "shared/data", "EMBREW_TOKENIZERS": "shared/tokenizers"}),
        (["data"], {}, {"EMBREW_DATA": "shared/data"}),
        ([], {}, {}),
        (["data"], {"EMBREW_DATA": "elsewhere"}, {"EMBREW_DATA": "elsewhere"}),
    ],
)
def test_data_beside_the_checkout_is_used(beside, given, seen, tmp_path):
    checkout, tools = tmp_path / "checkout" / ".ci", tmp_path / "tools"
    checkout.mkdir(parents=True)
    tools.mkdir()
    shutil.copy2(RUN, checkout / "run")
    for name in beside:
        (tmp_path / "shared" / name).mkdir(parents=True)
    make = tools / "make"
    make.write_text(
        f"#!/usr/bin/env bash\necho \"$1 ${{EMBREW_DATA-}} ${{EMBREW_TOKENIZERS-}}\" >> '{tmp_path}/calls'\n"
    )
    make.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    environment |= {"PATH": f"{tools}:{environment['PATH']}", **{n: str(tmp_path / v) for n, v in given.items()}}
    subprocess.run([checkout / "run"], env=environment, check=True, capture_output=True)
    values = " ".join(str(tmp_path / seen[name]) if name in seen else "" for name in NAMES)
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"{verb} {values}" for verb in ("lint", "docs", "smollm2", "test")
    ]
