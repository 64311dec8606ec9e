"""Scores kept by key: reused where they are of the same rows and the same encoder, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import pytest

from embrew.methods.autoregembed import keyed_scores, read_scores, write_scores


def key_of(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


class Computer:
    """Scores that differ between texts, and the number of requests for them."""

    def __init__(self, texts: list[str], stop_after: int | None = None) -> None:
        self.texts, self.stop_after = texts, stop_after
        self.asked: list[range] = []

    def __call__(self, rows: range) -> list[list[float]]:
        if len(self.asked) == self.stop_after:
            raise KeyboardInterrupt
        self.asked.append(rows)
        return [wanted(self.texts[row]) for row in rows]


def wanted(text: str) -> list[float]:
    return [-float(ord(text[0])), *[0.5 + i for i in range(ord(text[0]) % 3)]]  # of 1 to 3 scores


def run(texts: list[str], folder: Path | None, *, origin: str = "one", stop_after: int | None = None) -> Computer:
    computer = Computer(texts, stop_after)
    scores = keyed_scores([key_of(text) for text in texts], computer, folder=folder, origin=origin, unit=4)
    assert scores == [wanted(text) for text in texts]
    return computer


TEXTS = list("abcdefghij")


@pytest.mark.parametrize("kept", [True, False])
def test_every_row_has_its_own(kept: bool, tmp_path: Path) -> None:
    computer = run(TEXTS, tmp_path / "kept" if kept else None)
    assert computer.asked == [range(4), range(4, 8), range(8, 10)]
    assert run([], tmp_path / "none").asked == []
    if kept:
        assert run(TEXTS, tmp_path / "kept").asked == []


def test_what_was_stopped_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(TEXTS, tmp_path, stop_after=2)
    assert run(TEXTS, tmp_path).asked == [range(8, 10)]


@pytest.mark.parametrize(
    ("texts", "again"),
    [
        (TEXTS[::-1], 3),  # in another order
        (TEXTS[1:], 2),  # one row was left out: all but the last file have lost one
        (TEXTS[:9], 0),  # the last one was: all that is wanted is there
        (["b", "a", "d", "c", *TEXTS[4:]], 0),  # in another order, each in the same file
        ([*TEXTS[:4], "x", *TEXTS[5:]], 1),
        (["a", "a", "b", "a"], 0),
    ],
)
def test_other_rows_never_get_them(texts: list[str], again: int, tmp_path: Path) -> None:
    run(TEXTS, tmp_path)
    assert len(run(texts, tmp_path).asked) == again


def test_another_encoder_computes_its_own(tmp_path: Path) -> None:
    run(TEXTS, tmp_path)
    assert len(run(TEXTS, tmp_path, origin="another").asked) == 3


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-5], lambda data: b"", lambda data: data[:20] + b"x" + data[21:]]
)
def test_a_damaged_file_is_computed_again(
    damage: Callable[[bytes], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(TEXTS, tmp_path)
    path = tmp_path / "000001.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    assert run(TEXTS, tmp_path).asked == [range(4, 8)]
    assert "000001.safetensors is damaged" in caplog.text
    assert run(TEXTS, tmp_path).asked == []


def test_a_file_holds_float32_as_they_are(tmp_path: Path) -> None:
    scores = {key_of("a"): [-1.0, 0.25], key_of("b"): [], key_of("c"): [3.5]}
    write_scores(tmp_path / "file.safetensors", scores, "one")
    assert read_scores(tmp_path / "file.safetensors", "one") == scores
    assert [path.name for path in tmp_path.iterdir()] == ["file.safetensors"]  # and nothing temporary beside it
