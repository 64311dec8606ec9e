"""The site that mkdocs builds: all public names are in the reference, equations are MathML."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import embrew

ROOT = Path(__file__).parents[2]
DOLLAR = re.compile(r"(?<!\\)\$[^$\s][^$\n]*\$")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    for name in ("mkdocs", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(name, reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_every_public_name_has_an_anchor_and_a_description(site):
    page = (site / "reference" / "index.html").read_text()
    assert len(dir(embrew)) >= 20
    for name in dir(embrew):
        _, anchor, rest = page.partition(f'id="embrew.{name}"')
        assert anchor and '<div class="doc doc-contents' in rest[:6000], name
    for name in ("embrew.Encoder.encode", "embrew.Encoder.from_pretrained", "embrew.SearchIndex.search"):
        assert f'id="{name}"' in page
    for file, name in (
        ("training", "training.stages.train"),
        ("export", "export.exporting.export_encoder"),
        ("losses", "losses.info_nce"),
    ):
        assert f'id="embrew.{name}"' in (site / "reference" / f"{file}.html").read_text()


@pytest.mark.slow
def test_equations_are_mathml(site):
    pages = {path.relative_to(site): path.read_text() for path in site.rglob("*.html")}
    counts = {str(path): text.count("<math") for path, text in pages.items()}
    assert all(counts[f"{page}.html"] >= 8 for page in ("methods/llm2comp", "methods/ese", "reference/losses"))
    for path, text in pages.items():
        prose = re.sub(r"<(pre|code|script|math)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert not DOLLAR.search(prose) and "arithmatex" not in prose, path
