"""The home page and README: the first example prints what is shown, and links point to what is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOME, README = ROOT / "docs" / "index.md", ROOT / "README.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_example_prints_what_is_shown(capsys):
    ((code, shown),) = EXAMPLE.findall(HOME.read_text(encoding="utf-8"))
    exec(compile(code, str(HOME), "exec"), {})
    printed = capsys.readouterr().out
    numbers = [re.findall(r"\d\.\d+", text) for text in (shown, printed)]
    assert len(numbers[0]) == 4
    assert [float(number) for number in numbers[1]] == pytest.approx([float(number) for number in numbers[0]], abs=5e-4)
    assert re.sub(r"\d", "", printed) == re.sub(r"\d", "", shown)


@pytest.mark.skipif(not (ROOT / "benchmarks" / "results").exists(), reason="an unpacked sdist has no results")
def test_readme_points_to_what_is_there():
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert len(local) > 15
    assert [target for target in local if not (ROOT / target).exists()] == []
