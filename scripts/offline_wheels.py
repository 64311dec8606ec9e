"""Download what a machine without internet lacks of embrew's dependencies, as wheels for that machine.

On that machine:      python benchmarks/gpu_drill.py --preflight --output .     # writes gpu-drill-preflight.json
Here, with internet:  python scripts/offline_wheels.py gpu-drill-preflight.json wheels
On that machine:      pip install --no-index --no-deps wheels/*.whl

What is installed there stays as it is: versions are resolved beside it, and only what is missing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
OLDEST_GLIBC = 17  # of the manylinux wheels that are accepted, up to the machine's own


def main() -> int:
    """Download the wheels; 1 if they are larger than the limit."""
    parser = argparse.ArgumentParser(description="Download what a machine without internet lacks, as wheels.")
    parser.add_argument("preflight", type=Path, help="gpu-drill-preflight.json of that machine")
    parser.add_argument("folder", type=Path, help="folder of the wheels")
    parser.add_argument("--leave-out", nargs="*", default=["torch", "faiss-cpu", "httpx2", "matplotlib"],
                        help="dependencies that are not brought")  # fmt: skip
    parser.add_argument("--add", nargs="*", default=[], help="further requirements, such as pytest or bitsandbytes")
    parser.add_argument("--limit-mb", type=float, default=64, help="largest size of all wheels")
    given = parser.parse_args()
    there = json.loads(given.preflight.read_text())
    wanted = [*missing(there["installed"], given.leave_out), *given.add]
    if not wanted:
        sys.stdout.write("nothing is missing\n")
        return 0
    chosen = resolved(wanted, there)
    sys.stdout.write(f"downloading {' '.join(chosen)}\n")
    given.folder.mkdir(parents=True, exist_ok=True)
    if chosen:
        pip("download", "--no-deps", *target(there), "--dest", str(given.folder), *chosen)
    size = sum(path.stat().st_size for path in given.folder.glob("*.whl")) / 1e6
    sys.stdout.write(f"{size:.0f} MB in {given.folder}\n")
    return int(size > given.limit_mb)


def missing(installed: dict[str, str], left_out: list[str]) -> list[str]:
    """Return embrew's dependencies that a machine lacks, or has in a version that is too old."""
    from packaging.requirements import Requirement

    lines = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["dependencies"]
    found = [Requirement(line) for line in lines]
    return [
        str(one)
        for one in found
        if one.name not in left_out
        and not (one.name in installed and one.specifier.contains(installed[one.name], prereleases=True))
    ]


def resolved(wanted: list[str], there: dict[str, Any]) -> list[str]:
    """Return `name==version` of requirements and of what they need, less what is installed there."""
    installed: dict[str, str] = there["installed"]
    with tempfile.TemporaryDirectory() as folder:
        pins, report = Path(folder) / "pins.txt", Path(folder) / "report.json"
        asked = {normal(re.split(r"[^A-Za-z0-9._-]", one)[0]) for one in wanted}
        # a version such as 2.11.0+cu130 is not in the index; the public one has the same requirements
        lines = [f"{name}=={version.split('+')[0]}" for name, version in installed.items() if name not in asked]
        pins.write_text("\n".join(lines))
        more = ["--dry-run", "--ignore-installed", "--report", str(report)]
        pip("install", *more, *target(there), "--target", folder, "--constraint", str(pins), *wanted)
        found = [one["metadata"] for one in json.loads(report.read_text())["install"]]
    versions = {normal(one["name"]): one["version"] for one in found}
    return [f"{name}=={version}" for name, version in versions.items() if name in asked or name not in installed]


def target(there: dict[str, Any]) -> list[str]:
    """Return pip's options for a machine's Python and C library."""
    minor = int((there["glibc"] or "2.28").split(".")[1])
    platforms = [f"manylinux_2_{number}_{there['machine']}" for number in range(minor, OLDEST_GLIBC - 1, -1)]
    platforms += [f"manylinux2014_{there['machine']}"]
    options = ["--only-binary=:all:", "--python-version", ".".join(there["python"].split(".")[:2])]
    return [*options, *(word for one in platforms for word in ("--platform", one))]


def normal(name: str) -> str:
    """Return a distribution's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pip(*words: str) -> None:
    """Run pip."""
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *words], check=True)


if __name__ == "__main__":
    sys.exit(main())
