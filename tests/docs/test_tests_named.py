"""Test files that pages name exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MINE = "objectives/test_mine.py"  # of an objective that a reader adds


def test_named_tests_exist():
    found = []
    for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]:
        for name in re.findall(r"`(?:tests/)?((?:\w+/)*test_\w+\.py)`", page.read_text(encoding="utf-8")):
            found.append(name)
            assert (ROOT / "tests" / name).is_file() or name == MINE, (page.name, name)
    assert len(found) > 50
