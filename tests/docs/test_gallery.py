"""The gallery: its pictures are there, small, and come from the commands above them."""

import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("section", SECTIONS[1:], ids=[section.splitlines()[0] for section in SECTIONS[1:]])
def test_a_picture_has_its_command_above_it(section):
    """A command that names the file, or its folder; tests/docs/test_examples.py parses all commands."""
    (picture,) = PICTURE.findall(section)
    above = section.partition("![")[0]
    assert re.search(r"^embrew |`(?:make|scripts/)", above, re.MULTILINE)
    path = Path(picture)
    if "gallery/" in picture and "embrew analyze" in above:
        assert f"embrew analyze {path.stem} " in above and (path.suffix == ".png" or "--picture svg" in above)
