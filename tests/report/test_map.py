"""The map: coordinates against numpy, alignment, colours by hand, and size and safety of the page's data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embrew.evaluation.find import find_task
from embrew.report.atlas import _column_names, write_atlas
from embrew.report.maps import maps_of
from embrew.report.projection import aligned, components_of, tsne, unit
from embrew.report.sections import geometry
from embrew.report.sections import map as map_section
from tests.report.tasks import retrieval, subject_of, write_rows


@pytest.fixture
def subject(tmp_path: Path, bag_of_words):
    names = [f"q{i}" for i in range(12)]
    ranks = {"A": [3, 1, None, *[5] * 9], "B": [1, 2, 100, *[5] * 9]}
    examples = {model: {"pets": {"score": [0.5] * 12, "query": names, "rank": ranks[model]}} for model in ranks}
    made = subject_of({"pets": retrieval(tmp_path / "pets")}, examples)
    measured = {name: geometry.measure(bag_of_words, made) for name in ("A", "B")}
    return replace(made, measured={"geometry": measured})


def test_components_are_those_of_the_singular_value_decomposition() -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 6)) * [5, 4, 3, 2, 1, 1]
    found = components_of(vectors.astype(np.float32))
    left, values, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    assert np.allclose(abs(found.points), abs(left * values), atol=1e-4)
    assert np.allclose(found.variance, values**2 / (values**2).sum(), atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 5), (5, 1)])
def test_few_texts_or_dimensions_have_two_coordinates(shape: tuple[int, int]) -> None:
    found = components_of(np.random.default_rng(0).normal(size=shape))
    assert found.points.shape[0] == shape[0] and found.points.shape[1] >= 2 and len(found.variance) >= 2
    assert np.isfinite(tsne(found.points)).all()


def test_same_vectors_are_one_point() -> None:
    found = components_of(np.ones((5, 4)))
    assert np.isfinite(found.variance).all() and np.allclose(unit(found.points[:, :2]), 0)


def test_a_turned_mirrored_and_scaled_map_is_aligned_exactly() -> None:
    points = np.random.default_rng(0).normal(size=(20, 2))
    turn = np.array([[np.cos(1), -np.sin(1)], [np.sin(1), np.cos(1)]]) @ np.diag([1, -1])
    assert np.allclose(aligned(7 * points @ turn + 3, points), unit(points))
    assert np.isclose((unit(points) ** 2).sum(1).mean(), 1)
    assert not np.allclose(unit(7 * points @ turn + 3), unit(points))


def test_documents_are_coloured_by_the_change_of_rank(subject) -> None:
    (one,) = maps_of(subject)
    changes = dict(zip(one.sample.ids, one.changes, strict=True))
    # Both models have the mean 0.5, so that the first is the best; it is compared with the second.
    assert (changes["d0"], changes["d1"], changes["d2"], changes["d3"], changes["d20"]) == (2, -1, 1, 0, None)
    groups = dict(zip(one.sample.ids, one.groups, strict=True))
    assert [groups[name] for name in ("d0", "d1", "d3", "d20")] == [
        "later by A",
        "earlier by A",
        "at the same rank",
        "relevant to no query",
    ]
    assert list(one.colours) == ["earlier by A", "later by A", "at the same rank", "relevant to no query"]
    assert np.allclose(one.points["A"], one.points["B"])  # the same encoder


def test_results_without_ranks_are_not_coloured(subject) -> None:
    examples = {"pets": {"score": [0.5] * 12}}
    old = subject_of({"pets": subject.data["pets", "test"]}, {"A": examples, "B": examples})
    (one,) = maps_of(replace(old, measured=subject.measured))
    assert one.groups == () and set(one.changes) == {None}


def test_rare_labels_share_a_colour(tmp_path: Path, bag_of_words) -> None:
    rows = [{"text": f"text {i} of {j}", "label": f"topic {i}"} for i in range(9) for j in range(10 - i)]
    task = find_task(write_rows(tmp_path / "topics", rows), kind="clustering")
    examples = {"topics": {"score": [0.5] * len(rows)}}
    made = subject_of({"topics": task}, {"A": examples, "B": examples})
    measured = {"geometry": {"A": geometry.measure(bag_of_words, made)}}
    (one,) = maps_of(replace(made, measured=measured))
    assert list(one.colours) == [*(f"topic {i}" for i in range(7)), "other labels"]
    assert one.groups.count("other labels") == 3 + 2


@pytest.mark.slow
def test_tsne_is_seeded(subject) -> None:
    maps = [maps_of(replace(subject, map_method="tsne"))[0].points["A"] for _ in range(2)]
    assert np.array_equal(*maps) and not np.allclose(maps[0], maps_of(subject)[0].points["A"])


def test_section_states_variance_and_who_is_missing(subject) -> None:
    alone = {"geometry": {"A": subject.measured["geometry"]["A"]}}
    section = map_section.section(replace(subject, measured=alone))
    assert section is not None and section.values["not_measured"] == ["B"]
    (figure,) = section.figures
    assert figure.model == "A" and 0 < figure.value < 1
    assert map_section.section(replace(subject, measured={})) is None


@pytest.mark.slow
@pytest.mark.parametrize("character", ["語", "&"])
def test_the_largest_map_has_a_megabyte(subject, character: str) -> None:
    (one,) = maps_of(subject)
    texts = 5000
    grown = replace(
        one,
        sample=replace(
            one.sample,
            ids=tuple(f"document-{i}" for i in range(texts)),
            texts=(one.sample.texts[0]._replace(text=character * 500),) * texts,
        ),
        points={f"model {i}": np.random.default_rng(i).normal(size=(texts, 2)) for i in range(10)},
        variance={f"model {i}": 0.1 for i in range(10)},
        groups=("",) * texts,
        changes=(None,) * texts,
    )
    from embrew.report.templates import as_json

    (rows,) = map_section._shown([grown], map_section.PLACES // 10)
    size = len(as_json(map_section._chart("map-0", grown, rows, "pca").spec).encode())
    assert len(rows) == 5000 and size < 1_200_000, size
    assert len(map_section._shown([grown], 100)[0]) == 100


def test_texts_are_shortened_to_whole_characters_of_one_line() -> None:
    assert map_section.shortened("a\n b\tc") == "a b c"
    assert map_section.shortened("語" * 100) == "語" * 19 + "…"
    assert len(map_section.shortened("x" * 100).encode()) == map_section.BYTES
    json.dumps(map_section.shortened("\ud800 lone surrogate"))


def test_atlas_files_hold_whole_texts_and_positions_by_model(subject, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    maps = maps_of(subject)
    long = maps[0].sample.texts[0]._replace(text="x" * 500 + "\ud800")
    maps = [replace(maps[0], sample=replace(maps[0].sample, texts=(long, *maps[0].sample.texts[1:])))]
    (command,) = write_atlas(maps, tmp_path / "atlas")
    file = tmp_path / "atlas" / "pets.test.parquet"
    assert command == f"embedding-atlas {file} --text text --x x_a --y y_a --duckdb server"
    table = pq.read_table(file)
    assert table.column_names == ["id", "text", "rank_change", "x_a", "y_a", "x_b", "y_b"]
    assert table["text"][0].as_py() == "x" * 500 + "?"
    assert table["rank_change"].to_pylist()[:2] == [maps[0].changes[0], maps[0].changes[1]]
    assert np.allclose(table["y_b"].to_numpy(), maps[0].points["B"][:, 1])


def test_models_whose_names_are_alike_have_columns_of_their_own() -> None:
    assert _column_names(["A b", "a_b", "ö"]) == ["1_a_b", "2_a_b", "3_"]
    assert _column_names(["runs/a", "b-1"]) == ["runs_a", "b_1"]
