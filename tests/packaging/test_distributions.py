"""Wheel and sdist: what they hold, and that they work where only they are installed, outside the checkout."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

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
def distributions(tmp_path_factory) -> tuple[Path, Path, Path]:
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
def installed(distributions, tmp_path_factory) -> Path:
    """A new environment in which the wheel is installed; its dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    install = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index")
    command(*install, distributions[0], cwd=folder)
    (own,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (own / "dependencies.pth").write_text(f"{SITE}\n")  # after its own packages; .pth files in SITE are not read
    return folder / "venv"


def content(wheel: Path) -> dict[str, str]:
    """Return sha256 of every file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def test_twine_accepts_both(distributions, tmp_path):
    said = command(sys.executable, "-m", "twine", "check", "--strict", *distributions, cwd=tmp_path)
    assert said.count("PASSED") == 3


def test_every_file_of_the_package_is_in_the_wheel(distributions):
    source = ROOT / "src"
    files = [path for path in (source / "embrew").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    wanted = {path.relative_to(source).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    found = {name: sha for name, sha in content(distributions[0]).items() if ".dist-info/" not in name}
    assert found == wanted
    assert {"embrew/recipes/llm2comp/nano.yaml", "embrew/assets/nano/model.safetensors", "embrew/py.typed"} <= set(
        found
    )


def test_the_sdist_builds_the_same_wheel_and_holds_what_tests_need(distributions):
    direct, sdist, wheel = distributions
    assert content(wheel) == content(direct)
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("examples", "tests", "docs"):
        files = [path for path in (ROOT / folder).rglob("*.*") if path.suffix in (".py", ".md") and path.is_file()]
        missing = {path.relative_to(ROOT).as_posix() for path in files} - names
        assert len(files) >= 6 and not missing
    assert {"CITATION.cff", "SECURITY.md", "LICENSE", "constraints.txt", "Makefile", "llms.txt"} <= names
    assert not [name for name in names if name.startswith("benchmarks/results")]
    assert sdist.stat().st_size < 20e6


def test_the_installed_wheel_works(installed, tmp_path):
    embrew = installed / "bin" / "embrew"
    place, *vector = json.loads(command(installed / "bin" / "python", "-c", ENCODE, cwd=tmp_path))
    assert Path(place).is_relative_to(installed)
    np.testing.assert_allclose(vector, Encoder.from_pretrained("nano").encode("a cat"), atol=1e-6)
    assert "llm2comp/nano" in command(embrew, "recipe", "list", cwd=tmp_path)
    assert command(embrew, "--version", cwd=tmp_path).split()[-1] == PROJECT["version"]
    report = json.loads(command(embrew, "doctor", "--json", cwd=tmp_path))
    assert report["status"] in ("ok", "warning") and len(report["findings"]) >= 10
