"""Samples for the suite `real`, and a model that reads chat markers: `python benchmarks/real_data.py OUT`.

The sets are samples of those in `$EMBREW_DATA`, so that a model of 135 million parameters is scored in minutes on one
core. Plans name OUT as `$REAL`. The same seed gives the same rows. OUT/dev has questions, and articles of SQuAD, that
are in none of the other sets.

With `--model FOLDER` (SmolLM2-135M-Instruct), OUT/chat is that model with `<|im_start|>` and `<|im_end|>` as plain
added tokens, so that a template may hold them. In the original they are special tokens, which stay text in every text
and template.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

SEED = 45
STS, PAIRS, TEXTS, QUERIES = 500, 350, 400, 40  # rows of a test split: STS12 to 15, mrpc, classification, trecqa
Row = dict[str, Any]


class Asked(NamedTuple):
    """What of a retrieval set is kept.

    Attributes:
        split: of its relevance judgements.
        part: of the articles (with `paragraphs`), or of the questions in a seeded order.
        questions: number of them; all without it.
        others: documents that answer none of them.
        paragraphs: of SQuAD.
    """

    split: str
    part: slice = slice(None)
    questions: int = 10**6
    others: int = 0
    paragraphs: int = 0


RETRIEVAL = {  # folder: data folder, what is kept of it
    "squad_retrieval": ("squad_retrieval", Asked("dev", slice(0, None, 2), questions=400, paragraphs=240)),
    "medquad_retrieval": ("medquad_retrieval", Asked("test", questions=150, others=140)),
    "cranfield": ("cranfield", Asked("test", questions=60)),
    "dev/squad_retrieval": ("squad_retrieval", Asked("dev", slice(1, None, 2), questions=150, paragraphs=90)),
    "medical": ("medquad_retrieval", Asked("test", slice(200, None))),  # for LBR; the first 200 choose its rates
    "dev/medical": ("medquad_retrieval", Asked("test", slice(200), others=200)),
    "space/medquad": ("medquad_retrieval", Asked("test", questions=300, others=1500)),  # indexes that stay
    "space/cranfield": ("cranfield", Asked("test")),
}


def rows_of(path: Path) -> list[Row]:
    """The rows of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write(path: Path, rows: Iterable[Row]) -> None:
    """A file of rows, the same bytes each time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
        file.writelines((json.dumps(row, ensure_ascii=False) + "\n").encode() for row in rows)


def sampled(rows: list[Row], count: int) -> list[Row]:
    """`count` of the rows, in their order."""
    chosen = random.Random(SEED).sample(range(len(rows)), min(count, len(rows)))
    return [rows[i] for i in sorted(chosen)]


def retrieval(source: Path, target: Path, asked: Asked) -> None:
    """Write questions of a split, their documents, and others by a seed."""
    corpus = {row["_id"]: row for row in rows_of(source / "corpus.jsonl.gz")}
    queries = {row["_id"]: row for row in rows_of(source / "queries.jsonl.gz")}
    header, *lines = (source / f"qrels.{asked.split}.tsv").read_text().splitlines()
    judged = [tuple(line.split("\t")[:2]) for line in lines]
    kept: set[str] = set()
    if asked.paragraphs:  # of every other article, with all their questions
        titles = set(sorted({corpus[document]["title"] for _, document in judged})[asked.part])
        own = sorted({document for _, document in judged if corpus[document]["title"] in titles})
        kept = set(random.Random(SEED).sample(own, asked.paragraphs))
    names = sorted({query for query, document in judged if not kept or document in kept})
    if not asked.paragraphs:
        random.Random(SEED).shuffle(names)
        names = names[asked.part]
    chosen = set(random.Random(SEED).sample(names, min(asked.questions, len(names))))
    documents = kept | {document for query, document in judged if query in chosen}
    others = sorted(set(corpus) - documents)
    documents |= set(random.Random(SEED).sample(others, asked.others))
    write(target / "corpus.jsonl.gz", [row for name, row in corpus.items() if name in documents])
    write(target / "queries.jsonl.gz", [row for name, row in queries.items() if name in chosen])
    of_chosen = [line for line, (query, _) in zip(lines, judged, strict=True) if query in chosen]
    (target / f"qrels.{asked.split}.tsv").write_text("\n".join([header, *of_chosen]) + "\n")


def chat_model(model: Path, target: Path) -> None:
    """A model whose chat markers are read where a template holds them."""
    target.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (target / name).unlink(missing_ok=True)
        os.link(model / name, target / name) if name.endswith("s") else shutil.copy(model / name, target / name)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["special"] = token["special"] and token["content"] not in ("<|im_start|>", "<|im_end|>")
    (target / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    config = json.loads((model / "tokenizer_config.json").read_text())
    config |= dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|endoftext|>")
    (target / "tokenizer_config.json").write_text(json.dumps(config))


def main() -> None:
    """Write the sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path, help="folder of SmolLM2-135M-Instruct; its chat form goes to OUT/chat")
    asked = parser.parse_args()
    data, out = Path(os.environ["EMBREW_DATA"]), asked.out
    counts = {**dict.fromkeys(("STS12", "STS13", "STS14", "STS15"), STS), "mrpc": PAIRS, "trecqa_reranking": QUERIES}
    for name, count in {**counts, "emotion": TEXTS, "banking77": TEXTS}.items():
        for split in ("test", "dev"):
            if (source := data / name / f"{split}.jsonl.gz").exists():
                write(out / name / source.name, sampled(rows_of(source), count))
    for name in ("emotion", "banking77"):
        write(out / name / "train.jsonl.gz", rows_of(data / name / "train.jsonl.gz"))
    for name, (source, kept) in RETRIEVAL.items():
        retrieval(data / source, out / name, kept)
    if asked.model is not None:
        chat_model(asked.model, out / "chat")


if __name__ == "__main__":
    main()
