"""The gallery: its pictures are there, small, and come from the commands above them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gallery.md"
SECTIONS = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
PICTURE = re.compile(r"!\[[^\]]+\]\(([^)]+)\)")
LIMIT = 2_000_000  # bytes of all pictures


def test_pictures_are_there_and_small():
    named = [ROOT / "docs" / name for section in SECTIONS for name in PICTURE.findall(section)]
    assert len(named) >= 11 and [path for path in named if not path.is_file()] == []
    assert sum(path.stat().st_size for path in named) < LIMIT
    drawn = {path for path in named if path.parent.name == "gallery"}
    assert drawn == set((ROOT / "docs" / "images" / "gallery").iterdir())  # and none that no page shows
