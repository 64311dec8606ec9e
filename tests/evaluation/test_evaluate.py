import json
from typing import ClassVar

import numpy as np
import pytest

from embrew.evaluation import evaluate, find_task, table
from embrew.files.checksums import content_hash
from embrew.text_encoder import TextEncoder, encode_options, model_hash, resolved_prompts


def test_both_kinds_in_one_call(bag_of_words, sts_folder, retrieval_folder):
    sts, retrieval = evaluate(bag_of_words, [sts_folder, retrieval_folder])
    assert (sts.kind, sts.main_score, sts.counts) == ("sts", pytest.approx(1.0), {"pairs": 3})
    # q1 and q2 find theirs first; q3's document is not in the corpus
    assert (retrieval.kind, retrieval.main_score) == ("retrieval", pytest.approx(2 / 3))
    sides = [side for side, _, _ in bag_of_words.calls]
    assert sides == ["text", "query", "document"]


def test_files_hold_what_was_judged_and_how(bag_of_words, sts_folder, tmp_path):
    evaluate(bag_of_words, [sts_folder], output_dir=tmp_path / "out", batch_tokens=100)
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names == ["STS.test.examples.json", "STS.test.json", "STS.test.run.json"]
    result = json.loads((tmp_path / "out" / "STS.test.json").read_text())
    assert result["task_name"] == "STS"
    assert result["evaluation_time"] >= 0
    assert result["dataset_revision"] == content_hash([sts_folder / "test.jsonl"])
    (entry,) = result["scores"]["test"]
    assert entry["main_score"] == entry["cosine_spearman"] == pytest.approx(1.0)
    assert (entry["hf_subset"], entry["languages"]) == ("default", ["eng-Latn"])
    run = json.loads((tmp_path / "out" / "STS.test.run.json").read_text())
    assert run["resolved_prompts"] == {"text": "", "query": "q: ", "document": "d: "}
    assert {"python", "embrew", "torch", "transformers", "sentence-transformers"} == set(run["versions"])
    assert run["settings"] == {"batch_tokens": 100}
    assert run["dataset_revision"] == result["dataset_revision"]


def test_batch_tokens_only_where_it_is_known(bag_of_words):
    class Knows:
        def encode(self, inputs, *, batch_tokens=None):
            return np.ones((len(inputs), 2))

    assert encode_options(Knows(), batch_tokens=5)["batch_tokens"] == 5
    assert "batch_tokens" not in encode_options(bag_of_words, batch_tokens=5)
    assert "batch_tokens" not in encode_options(Knows())


def test_prompts_are_found_as_sentence_transformers_does():
    class Prompted:
        prompts: ClassVar = {"query": "Q", "passage": "P", "sts": "S"}
        default_prompt_name = "sts"

    assert resolved_prompts(Prompted()) == {"text": "S", "query": "Q", "document": "P"}


def test_a_sentence_transformer_is_judged_by_the_same_code(sts_folder, tmp_path):
    """A stock model of word vectors, so that no network or weights are needed: bag-of-words again."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import BoW

    vocabulary = ["a", "cat", "dog", "blue", "sky"]
    encoder = SentenceTransformer(modules=[BoW(vocabulary)], device="cpu", prompts={"query": "Q: "})
    assert isinstance(encoder, TextEncoder)
    (result,) = evaluate(encoder, [sts_folder], output_dir=tmp_path / "out", batch_tokens=64)
    assert result.main_score == pytest.approx(1.0)
    run = json.loads((tmp_path / "out" / "STS.test.run.json").read_text())
    assert run["model"]["modules"] == ["BoW"]
    assert run["prompts"]["query"] == "Q: "
    assert model_hash(encoder) == run["model_hash"]


def test_hashes_of_sentence_transformers_follow_weights_and_prompts():
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense

    def encoder(**options):
        torch.manual_seed(0)
        return SentenceTransformer(modules=[Dense(2, 2)], device="cpu", **options)

    plain, changed = encoder(), encoder()
    assert model_hash(plain) == model_hash(changed)
    with torch.no_grad():
        changed[0].linear.weight[0, 0] += 1
    assert len({model_hash(plain), model_hash(changed), model_hash(encoder(prompts={"query": "Q: "}))}) == 3


def test_hashes_of_sentence_transformers_follow_the_settings_of_modules():
    """Which change vectors, and no weight."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling

    def of(*modules):
        return model_hash(SentenceTransformer(modules=list(modules), device="cpu"))

    pooled = [of(Pooling(4, pooling_mode=mode)) for mode in ("mean", "cls", "mean")]
    assert pooled[0] == pooled[2] != pooled[1]
    dense = []
    for activation in (torch.nn.Tanh(), torch.nn.Identity(), torch.nn.Tanh()):
        torch.manual_seed(0)
        dense.append(of(Dense(2, 2, activation_function=activation)))
    assert dense[0] == dense[2] != dense[1]


def test_tables_are_times_one_hundred_and_end_with_the_mean(bag_of_words, sts_folder, retrieval_folder):
    header, rows = table(evaluate(bag_of_words, [sts_folder, retrieval_folder]))
    assert header == ["task", "split", "metric", "score", "size", "seconds"]
    assert [row[:5] for row in rows] == [
        ["STS", "test", "Spearman", "100.00", "3 pairs"],
        ["pets", "dev", "nDCG@10", "66.67", "3 queries + 3 documents"],
        ["mean over kinds", "", "", "83.33", ""],
        ["mean over tasks", "", "", "83.33", ""],
    ]


def test_mistakes_are_found_before_encoding(bag_of_words, sts_folder, tmp_path):
    with pytest.raises(TypeError, match="give a list of folders"):
        evaluate(bag_of_words, str(sts_folder))
    with pytest.raises(FileNotFoundError, match="no data folder"):
        evaluate(bag_of_words, [sts_folder, tmp_path / "missing"])
    with pytest.raises(ValueError, match=r"two tasks are called STS \(test\)"):
        evaluate(bag_of_words, [sts_folder, sts_folder])
    assert not bag_of_words.calls


def test_what_is_judged_already_is_not_judged_again(bag_of_words, sts_folder, retrieval_folder, tmp_path, caplog):
    caplog.set_level("INFO", "embrew")
    bag_of_words.weights_hash = lambda: "abc"
    first = evaluate(bag_of_words, [sts_folder], output_dir=tmp_path / "out")
    bag_of_words.calls.clear()
    again = evaluate(bag_of_words, [sts_folder, retrieval_folder], output_dir=tmp_path / "out")
    assert again[0] == first[0]
    assert [side for side, _, _ in bag_of_words.calls] == ["query", "document"]  # only what was missing
    assert "STS test: 1.0000, evaluated before" in caplog.text


def test_results_of_something_else_are_not_replaced_unasked(bag_of_words, sts_folder, tmp_path, tokenizer):
    bag_of_words.weights_hash = lambda: "abc"
    evaluate(bag_of_words, [sts_folder], output_dir=tmp_path / "out")
    written = (tmp_path / "out" / "STS.test.json").read_bytes()
    with pytest.raises(FileExistsError, match="evaluated with other settings; choose another output folder"):
        evaluate(bag_of_words, [find_task(sts_folder, protocol="all")], output_dir=tmp_path / "out")
    bag_of_words.weights_hash = lambda: "def"
    with pytest.raises(FileExistsError, match="evaluated with other model_hash"):
        evaluate(bag_of_words, [sts_folder], output_dir=tmp_path / "out")
    bag_of_words.weights_hash = lambda: "abc"
    bag_of_words.tokenizer = tokenizer
    with pytest.raises(FileExistsError, match="evaluated with other tokenizer_sha256"):
        evaluate(bag_of_words, [sts_folder], output_dir=tmp_path / "out")
    assert (tmp_path / "out" / "STS.test.json").read_bytes() == written
    evaluate(bag_of_words, [sts_folder], output_dir=tmp_path / "out", overwrite=True)
    assert json.loads((tmp_path / "out" / "STS.test.run.json").read_text())["tokenizer_sha256"]


def test_a_half_written_result_is_named(bag_of_words, sts_folder, tmp_path):
    evaluate(bag_of_words, [sts_folder], output_dir=tmp_path / "out")
    (tmp_path / "out" / "STS.test.json").write_text('{"task_name": "STS"')
    with pytest.raises(ValueError, match="STS.test.json cannot be read: not valid JSON"):
        evaluate(bag_of_words, [sts_folder], output_dir=tmp_path / "out")
