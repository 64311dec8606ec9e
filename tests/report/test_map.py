"""The sample of the tasks' texts, figures of their vectors, and the map: against numpy and by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from embrew.evaluation.find import find_task
from embrew.report import geometry
from embrew.report import map as map_section
from embrew.report.geometry import measure_vectors, principal_components, sample_texts
from embrew.report.map import aligned, text_groups
from embrew.report.page import write_report
from tests.report.subjects import HOSTILE_MODELS
from tests.report.tasks import retrieval, subject_of, write_rows

KEY = ("pets", "test")
MARKUP = "<img src=x onerror=\"document.title='run'\"></script><b>{{ 7 * 7 }}</b>"
CHOSEN = '#map .mark-symbol.role-mark path[opacity="0.75"]'


@pytest.fixture
def subject(tmp_path, bag_of_words):
    names = [f"q{i}" for i in range(12)]
    ranks = {"A": [3, 1, None, *[5] * 9], "B": [1, 2, 100, *[5] * 9]}
    examples = {model: {"pets": {"score": [0.5] * 12, "query": names, "rank": ranks[model]}} for model in ranks}
    unmeasured = subject_of({"pets": retrieval(tmp_path / "pets")}, examples)
    return replace(unmeasured, vectors={name: measure_vectors(bag_of_words, unmeasured.data) for name in ("A", "B")})


def test_the_sample_is_limited_seeded_and_shared_among_tasks(tmp_path, bag_of_words):
    data = {(name, "test"): retrieval(tmp_path / name, seed=i) for i, name in enumerate(("a", "b"))}
    samples = sample_texts(data, texts=20)
    assert [(len(sample.texts), len(sample.queries)) for sample in samples.values()] == [
        (8, 2)
    ] * 2  # a fifth are queries
    assert samples == sample_texts(data, texts=20)
    assert samples != sample_texts(data, texts=20, seed=1)
    measure_vectors(bag_of_words, data)
    assert (
        sorted((side, count) for side, count, _ in bag_of_words.calls) == [("document", 30)] * 2 + [("query", 12)] * 2
    )


@pytest.mark.parametrize("maximum", [3, 100])
def test_rows_give_each_text_once(maximum, tmp_path):
    rows = [{"query": f"q{i}", "positive": [f"p{i}"], "negative": [f"n{i}"]} for i in range(4)]
    candidates = find_task(write_rows(tmp_path / "rank", rows), kind="reranking")
    sample = sample_texts({("rank", "test"): candidates}, texts=maximum)["rank", "test"]
    assert len(sample.texts) == 2 * len(sample.queries) == (2 if maximum == 3 else 8)
    rows = [{"text": text, "label": label} for text, label in (("one", "a"), ("two", "b"), ("one", "b"))]
    topics = find_task(write_rows(tmp_path / "topics", rows), kind="clustering")
    sample = sample_texts({("topics", "test"): topics})["topics", "test"]
    assert (sample.ids, sample.labels, sample.queries) == (("1", "2"), ("a", "b"), ())


def test_empty_documents_are_left_out(tmp_path):
    task = retrieval(tmp_path / "pets", documents=3, queries=2)
    rows = [{"_id": "d0", "text": " "}, {"_id": "d1", "text": "cats purr"}, {"_id": "d2", "text": "dogs"}]
    write_rows(tmp_path / "pets", rows, "corpus.jsonl")
    assert sample_texts({KEY: task})[KEY].ids == ("d1", "d2")


def test_figures_are_those_of_numpy_and_scipy(subject, bag_of_words):
    figures = subject.vectors["A"]
    sample = sample_texts(subject.data)[KEY]
    vectors = bag_of_words.encode([*sample.texts, *sample.queries]).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert figures["texts"] == len(vectors) == 42
    values = np.linalg.eigvalsh(np.cov(vectors.T))[::-1].clip(0)
    spectrum = figures["spectrum"]
    assert spectrum["participation_ratio"] == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-5)
    assert spectrum["shares"][0] == pytest.approx(values[0] / values.sum(), rel=1e-5)
    assert spectrum["ranks"][0] == 1 and spectrum["ranks"][-1] == 512
    assert figures["uniformity"] == pytest.approx(np.log(np.exp(-2 * pdist(vectors) ** 2).mean()), rel=1e-4)
    json.dumps({key: value for key, value in figures.items() if key != "map"}, allow_nan=False)


def test_collapsed_vectors_have_no_spectrum(subject, bag_of_words, monkeypatch):
    monkeypatch.setattr(type(bag_of_words), "_vectors", lambda self, side, texts, options: np.ones((len(texts), 4)))
    figures = measure_vectors(bag_of_words, subject.data)
    assert figures["spectrum"] is None and "the same" in figures["missing"]["spectrum"]
    assert figures["uniformity"] == pytest.approx(0, abs=1e-6)
    assert (figures["map"]["pets test"]["points"] == 0).all() and figures["map"]["pets test"]["variance"] == 0


@pytest.mark.parametrize("shape", [(30, 6), (2, 5), (5, 1)])
def test_components_are_those_of_scikit_learn(shape):
    from sklearn.decomposition import PCA

    vectors = np.random.default_rng(0).normal(size=shape)
    components = principal_components(vectors)
    pca = PCA(min(2, *shape))
    expected = pca.fit_transform(vectors)
    assert components["points"].shape == (shape[0], 2)
    assert np.allclose(abs(components["points"][:, : expected.shape[1]]), abs(expected), atol=1e-4)
    assert components["variance"] == pytest.approx(pca.explained_variance_ratio_.sum())


def test_a_turned_mirrored_and_scaled_map_is_aligned_exactly():
    points = np.random.default_rng(0).normal(size=(20, 2))
    turn = np.array([[np.cos(1), -np.sin(1)], [np.sin(1), np.cos(1)]]) @ np.diag([1, -1])
    reference = aligned(points, points)
    assert np.allclose(aligned(7 * points @ turn + 3, points), reference)
    assert np.isclose((reference**2).sum(1).mean(), 1)


def test_documents_are_coloured_by_the_change_of_rank(subject):
    sample = sample_texts(subject.data)[KEY]
    groups = text_groups(subject, KEY, sample)
    changes = dict(zip(sample.ids, groups.changes, strict=True))
    # Both models have the mean 0.5, so that the first is the best; it is compared with the second.
    assert (changes["d0"], changes["d1"], changes["d2"], changes["d3"], changes["d20"]) == (2, -1, 1, 0, None)
    by_id = dict(zip(sample.ids, groups.groups, strict=True))
    expected = ["earlier by A", "later by A", "at the same rank", "relevant to no query"]
    assert [by_id[name] for name in ("d1", "d0", "d3", "d20")] == list(groups.colours) == expected
    examples = {"pets": {"score": [0.5] * 12}}
    without_ranks = subject_of({"pets": subject.data[KEY]}, {"A": examples, "B": examples})
    assert text_groups(without_ranks, KEY, sample).groups == ()


def test_rare_labels_share_a_colour(tmp_path):
    rows = [{"text": f"text {i} of {j}", "label": f"topic {i}"} for i in range(9) for j in range(10 - i)]
    task = find_task(write_rows(tmp_path / "topics", rows), kind="clustering")
    examples = {"topics": {"score": [0.5] * len(rows)}}
    subject = subject_of({"topics": task}, {"A": examples, "B": examples})
    (sample,) = sample_texts(subject.data).values()
    groups = text_groups(subject, ("topics", "test"), sample)
    assert list(groups.colours) == [*(f"topic {i}" for i in range(7)), "other labels"]
    assert groups.groups.count("other labels") == 3 + 2


def test_sections_name_models_that_were_not_measured(subject):
    alone = replace(subject, vectors={"A": subject.vectors["A"]})
    section = map_section.section(alone)
    assert section.values["not_measured"] == ["B"]
    assert list(section.document["tasks"]["pets test"]["variance"]) == ["A"]
    section = geometry.section(alone)
    assert section.document["not_measured"] == ["B"]
    assert section.values["rows"]["dimensions"] == ["512", "–"]
    for module in (map_section, geometry):
        assert module.section(replace(subject, vectors={})) is None


@pytest.mark.slow
def test_a_selection_is_shown_in_all_maps_and_listed(show, tmp_path, bag_of_words):
    task = retrieval(tmp_path / "pets")
    rows = [{"_id": f"{MARKUP}{i}", "title": "", "text": f"{MARKUP} {i % 7} {i % 3} {i % 2}"} for i in range(30)]
    write_rows(tmp_path / "pets", rows, "corpus.jsonl")
    lines = [f"q{i}\t{MARKUP}{i}\t1\n" for i in range(12)]
    (tmp_path / "pets" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    names = [f"q{i}" for i in range(12)]
    models = HOSTILE_MODELS[:2]
    examples = {
        model: {"pets": {"score": [0.5] * 12, "query": names, "rank": [1 + i] * 12, "top": [[]] * 12}}
        for i, model in enumerate(models)
    }
    subject = subject_of({"pets": task}, examples)
    # the texts of some rows are the same: each is a point of its own
    vectors = {model: measure_vectors(bag_of_words, subject.data) for model in models}
    write_report(replace(subject, vectors=vectors), tmp_path / "report.html")
    shown = show(tmp_path / "report.html", viewport={"width": 1200, "height": 900})
    page = shown.page
    assert page.locator("#geometry .drawing svg.marks").count() == 1
    assert page.locator(CHOSEN).count() == 2 * 30  # nothing is selected
    first = page.locator("#map-0 [class*=_group] > g > path.background").first  # without titles and legend
    first.scroll_into_view_if_needed()
    box = first.bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + 3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 3, steps=4)
    page.mouse.up()
    page.wait_for_function("() => document.querySelectorAll('#map-0-texts li').length > 0")
    listed = page.locator("#map-0-texts li").all_inner_texts()
    assert 0 < len(listed) < 30
    assert page.locator("#map-0-count").inner_text() == f"{len(listed)} texts are selected."
    page.wait_for_function(f"() => document.querySelectorAll('{CHOSEN}').length === {2 * len(listed)}")
    assert all(text.startswith("<img src=x onerror=") for text in listed)
    assert page.title() != "run" and page.locator("main img, main b:has-text('49')").count() == 0
    assert shown.problems == []
