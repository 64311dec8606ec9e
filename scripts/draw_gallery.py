"""Run the commands of docs/gallery.md and copy their pictures to docs/images/gallery: `python scripts/draw_gallery.py`.

The page is the only list of commands: each `bash` block is run line by line in the work folder; a `yaml` block with a
title is written there. A command that has ended is not run again; remove the work folder to draw everything anew. Needs
`$EMBREW_DATA`, and about half an hour on two cores.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gallery.md"
PICTURES = ROOT / "docs" / "images" / "gallery"
BLOCK = re.compile(r'^```(bash|yaml)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"\(images/gallery/([^)]+)\)")


def main() -> None:
    """Run what is left of the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "gallery", help="folder of models and pictures")
    work = parser.parse_args().work.resolve()
    if "EMBREW_DATA" not in os.environ:
        parser.error("set EMBREW_DATA to the folder of the data sets")
    (work / "finished").mkdir(parents=True, exist_ok=True)
    if not (work / "benchmarks").exists():
        (work / "benchmarks").symlink_to(ROOT / "benchmarks")
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        draw(section, work)


def draw(section: str, work: Path) -> None:
    """Run the commands of a section that have not ended yet, and copy its pictures."""
    pictures = PICTURE.findall(section)
    for kind, title, code in BLOCK.findall(section):
        if kind == "yaml":
            (work / title).write_text(code, encoding="utf-8")
            continue
        for command in re.sub(r" *\\\n *", " ", code).splitlines():
            marker = work / "finished" / hashlib.sha256(command.encode()).hexdigest()[:16]
            if not marker.exists():
                for name in pictures:
                    (work / name).unlink(missing_ok=True)  # of a command that was killed
                run(command, work)
                marker.write_text(command + "\n", encoding="utf-8")
    for name in pictures:
        PICTURES.mkdir(parents=True, exist_ok=True)
        (source,) = [path for path in (work / name, *work.glob(f"*/{name}")) if path.is_file()]
        shutil.copyfile(source, PICTURES / name)


def run(command: str, work: Path) -> None:
    """Run one command as a shell does, with the `embrew` of this interpreter."""
    sys.stderr.write(f"$ {command}\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-euc", command], cwd=work, env={**os.environ, "PATH": path}, check=True)


if __name__ == "__main__":
    main()
