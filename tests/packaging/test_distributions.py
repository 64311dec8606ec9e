"""Wheel and sdist: what they hold, and that they work where only they are installed, outside the checkout."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from embrew import Encoder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SITE = Path(np.__file__).parents[1]
ENCODE = """
import embrew, json
vector = embrew.Encoder.from_pretrained("nano").encode("a cat")
print(json.dumps([embrew.__file__, *map(float, vector)]))
"""


def command(*arguments: object, cwd: Path) -> str:
    """Run a command without the checkout on its path; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The wheel of the checkout, the sdist, and the wheel of the sdist."""
    for name in ("build", "hatchling", "twine"):
        pytest.importorskip(name, reason="the extra dev is not installed")
    folder = tmp_path_factory.mktemp("distributions")
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir")
    command(*build, folder / "direct", "--wheel", ROOT, cwd=folder)
    command(*build, folder / "through", ROOT, cwd=folder)  # an sdist, and a wheel of it
    (direct,) = (folder / "direct").glob("*.whl")
    (sdist,) = (folder / "through").glob("*.tar.gz")
    (wheel,) = (folder / "through").glob("*.whl")
    return direct, sdist, wheel


@pytest.fixture(scope="module")
def installed(distributions: tuple[Path, Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment in which the wheel is installed; its dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    command(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        distributions[0],
        cwd=folder,
    )
    (own,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (own / "dependencies.pth").write_text(f"{SITE}\n")  # after its own packages; .pth files in SITE are not read
    return folder / "venv"


def content(wheel: Path) -> dict[str, str]:
    """Return sha256 of every file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def normalised(line: str) -> tuple[str, ...]:
    """Return name, version and extras of a requirement."""
    found = Requirement(line)
    return canonicalize_name(found.name), str(found.specifier), *sorted(found.extras)


def requirements(extra: str) -> set[tuple[str, ...]]:
    """Return the requirements of an extra, and of the extras of this package that it names."""
    found = set()
    for line in PROJECT["optional-dependencies"][extra]:
        own = re.fullmatch(r"embrew\[(.+)\]", line)
        found |= set().union(*map(requirements, own[1].split(","))) if own else {normalised(line)}
    return found


def test_twine_accepts_both(distributions: tuple[Path, Path, Path], tmp_path: Path) -> None:
    said = command(sys.executable, "-m", "twine", "check", "--strict", *distributions, cwd=tmp_path)
    assert said.count("PASSED") == 3


def test_every_file_of_the_package_is_in_the_wheel(distributions: tuple[Path, Path, Path]) -> None:
    source = ROOT / "src"
    files = [path for path in (source / "embrew").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    wanted = {path.relative_to(source).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    found = {name: sha for name, sha in content(distributions[0]).items() if ".dist-info/" not in name}
    assert found == wanted
    for name in (
        "recipes/llm2comp/nano.yaml",
        "suites/papers/ese.yaml",
        "sweeps/lbr/ratio.yaml",
        "assets/nano/model.safetensors",
        "serving/page/index.html",
        "assets/nano_vectors.json",
        "py.typed",
    ):
        assert f"embrew/{name}" in found


def test_metadata_names_every_extra(distributions: tuple[Path, Path, Path]) -> None:
    with zipfile.ZipFile(distributions[0]) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    extras = PROJECT["optional-dependencies"]
    assert set(metadata.get_all("Provides-Extra")) == set(extras)
    needed = metadata.get_all("Requires-Dist")
    assert len([line for line in needed if "extra ==" not in line]) == len(PROJECT["dependencies"])
    for extra in extras:
        found = {normalised(line) for line in needed if f"extra == '{extra}'" in line}
        assert found and found == requirements(extra), extra
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["Requires-Python"] == PROJECT["requires-python"]


def test_the_sdist_builds_the_same_wheel_and_holds_what_tests_need(distributions: tuple[Path, Path, Path]) -> None:
    direct, sdist, wheel = distributions
    assert content(wheel) == content(direct)
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("examples", "tests", "docs"):
        files = [path for path in (ROOT / folder).rglob("*.*") if path.suffix in (".py", ".md") and path.is_file()]
        missing = {path.relative_to(ROOT).as_posix() for path in files} - names
        assert len(files) >= 6 and not missing
    assert {"CITATION.cff", "SECURITY.md", "LICENSE", "constraints.txt", "Makefile"} <= names


def test_the_installed_wheel_works(installed: Path, tmp_path: Path) -> None:
    embrew = installed / "bin" / "embrew"
    place, *vector = json.loads(command(installed / "bin" / "python", "-c", ENCODE, cwd=tmp_path))
    assert Path(place).is_relative_to(installed)
    np.testing.assert_allclose(vector, Encoder.from_pretrained("nano").encode("a cat"), atol=1e-6)
    assert "llm2comp/nano" in command(embrew, "recipe", "list", cwd=tmp_path)
    assert command(embrew, "--version", cwd=tmp_path).split()[-1] == PROJECT["version"]
    report = json.loads(command(embrew, "doctor", "--json", cwd=tmp_path))
    assert report["status"] in ("ok", "warning") and len(report["findings"]) >= 10
