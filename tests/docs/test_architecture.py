"""The page of the architecture, against the code and the import rules."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_package_has_its_sentence():
    table = PAGE.split("## One sentence per package")[1].split("\n## ")[0]  # two tables
    named = set(re.findall(r"`([\w.]+)`", "\n".join(line.split("|")[1] for line in table.splitlines() if "|" in line)))
    source = ROOT / "src" / "embrew"
    packages = {path.parent for path in source.rglob("__init__.py")} - {source}
    expected = {".".join(path.relative_to(source).parts) for path in packages}
    top = {name for name in expected if "." not in name} | {path.stem for path in source.glob("[a-z]*.py")}
    assert top <= named, f"no sentence: {sorted(top - named)}"
    assert not {name for name in named if "." in name} - expected, "no such package"


def test_every_file_it_names_is_there():
    names = re.findall(r"`((?:\w+/)+\w+\.py)`", PAGE)
    assert len(names) > 10
    for name in names:
        assert (ROOT / "src" / "embrew" / name).is_file(), name


def test_the_picture_is_that_of_the_import_rules():
    script = runpy.run_path(str(ROOT / "scripts" / "draw_architecture.py"))
    assert script["PICTURE"].read_text(encoding="utf-8") == script["draw"](), "run python scripts/draw_architecture.py"
