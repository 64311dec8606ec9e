import numpy as np
import pytest

from embrew.analysis.plots import plot_alignment_uniformity, plot_memory, plot_spectra
from embrew.analysis.spectrum import Spectrum
from embrew.analysis.uniformity import AlignmentUniformity


def test_several_models_in_one_picture(tmp_path):
    curves = [(name, Spectrum(np.array([4.0, 1.0, 0.0]) * i, 10, 0.01)) for i, name in enumerate("ab", start=1)]
    plot_spectra(curves, tmp_path / "s.svg")
    said = (tmp_path / "s.svg").read_text()
    assert said.lstrip().startswith("<?xml")
    assert "a: 2 of 3" in said
    matrices = [(f"model {k}", np.eye(k), list(range(k))) for k in (1, 3, 20, 2, 4)]
    plot_memory(matrices, tmp_path / "m.svg")
    said = (tmp_path / "m.svg").read_text()
    assert all(f"model {k}" in said and f"{k} of {k} effective" in said for k in (1, 3, 20, 2, 4))
    points = [("a", AlignmentUniformity(0.2, -2.0, 5, 9)), ("b", AlignmentUniformity(0.1, -1.0, 5, 9))]
    plot_alignment_uniformity(points, tmp_path / "u.png")
    assert (tmp_path / "u.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.svg", "s.svg", "u.png"]


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"choose from \.png, \.pdf, \.svg"):
        plot_alignment_uniformity([("a", AlignmentUniformity(0.2, -2.0, 5, 9))], tmp_path / "u.jpg")
    assert list(tmp_path.iterdir()) == []
