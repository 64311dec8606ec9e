"""Write HotpotQA (Yang et al., 2018) as a BEIR folder whose queries have answers; its paragraphs are the corpus."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from embrew.data.fetching import ABOUT
from embrew.data.formats import Record
from embrew.data.reading import read
from embrew.files.checksums import is_intact, write_checksums
from embrew.files.reading import read_json
from embrew.files.writing import atomic_folder, atomic_path, write_json, write_jsonl


@dataclass(frozen=True)
class HotpotQA:
    """HotpotQA on the Hub, or a data set of the same form.

    Attributes:
        path: Id on the Hub.
        subset: `distractor` or `fullwiki`.
        split: Split of the questions.
        corpus_splits: Splits whose paragraphs are searched, in addition to `split`.
        revision: A commit on the Hub.
    """

    path: str
    subset: str | None = None
    split: str = "validation"
    corpus_splits: tuple[str, ...] = ()
    revision: str | None = None

    @property
    def folder(self) -> str:
        """Path below a suite's folder."""
        name = "-".join([self.path.replace("/", "--"), *([self.subset] if self.subset else []), self.split])
        return "/".join(["hub", "+".join([name, *(split for split in self.corpus_splits if split != self.split)])])


def store_hotpotqa(source: HotpotQA, folder: Path) -> bool:
    """Load the data set and write it into `folder` as a BEIR folder; return False if it exists already.

    A paragraph of several questions is one document. The titles of the supporting facts give the relevant documents.

    Raises:
        FileNotFoundError: no such data set on the Hub.
        ValueError: its rows are not of HotpotQA's form.
    """
    about = {"source": json.loads(json.dumps(asdict(source)))}
    if (folder / ABOUT).is_file() and is_intact(folder) and read_json(folder / ABOUT) == about:
        return False
    documents: dict[tuple[str, str], str] = {}  # title and text -> id
    queries: list[dict[str, str | list[str]]] = []
    judgements: list[str] = []
    for split in dict.fromkeys([source.split, *source.corpus_splits]):
        for record in read(source.path, name=source.subset, split=split, revision=source.revision):
            documents_by_title: dict[str, list[str]] = {}
            for title, text in _paragraphs(record):
                documents_by_title.setdefault(title, []).append(
                    documents.setdefault((title, text), f"d{len(documents)}")
                )
            if split != source.split:
                continue
            query, facts = _question(record), record.values["supporting_facts"]["title"]
            supporting = [document for title in dict.fromkeys(facts) for document in documents_by_title.get(title, ())]
            queries.append(query)
            # fullwiki's paragraphs may lack all supporting ones; a grade 0 keeps such a question in the split
            judgements += [f"{query['_id']}\t{document}\t1" for document in supporting]
            if not supporting:
                judgements.append(f"{query['_id']}\t{next(iter(documents_by_title.values()), ['d0'])[0]}\t0")
    with atomic_folder(folder, marker=ABOUT, overwrite=True) as new:
        rows = ({"_id": name, "title": title, "text": text} for (title, text), name in documents.items())
        write_jsonl(new / "corpus.jsonl", rows)
        write_jsonl(new / "queries.jsonl", queries)
        with atomic_path(new / f"qrels.{source.split}.tsv") as temporary:
            temporary.write_text("\n".join(["query-id\tcorpus-id\tscore", *judgements]) + "\n", encoding="utf-8")
        write_json(new / ABOUT, about)
        write_checksums(new)
    return True


def _paragraphs(record: Record) -> Iterator[tuple[str, str]]:
    context = record.values.get("context")
    if not isinstance(context, dict) or not {"title", "sentences"} <= set(context):
        raise ValueError(
            f"{record.where} is not of HotpotQA's form, which has question, answer, supporting_facts and context, an "
            f"object of the lists title and sentences; found {', '.join(record.values)}"
        )
    for title, sentences in zip(context["title"], context["sentences"], strict=True):
        text = "".join(sentences).strip()  # sentences begin with a blank
        if text:
            yield title, text


def _question(record: Record) -> dict[str, str | list[str]]:
    values = record.values
    missing = [column for column in ("id", "question", "answer", "supporting_facts") if values.get(column) is None]
    if missing:
        raise ValueError(f"{record.where} has no {', '.join(missing)}; a split without answers cannot be evaluated")
    for column in ("question", "answer"):
        if not isinstance(values[column], str):
            raise ValueError(f"{record.where}: {column} holds {values[column]!r:.80}, not a text")
    return {"_id": str(values["id"]), "text": values["question"], "answers": [values["answer"]]}
