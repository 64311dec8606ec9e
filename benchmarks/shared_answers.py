"""Count how many answers of SQuAD are the answer of another question too, by their number of words.

`python benchmarks/shared_answers.py` reads `$EMBREW_DATA/squad_instruct` and writes
`benchmarks/results/shared-answers.json`. `embrew adapt` takes its `IDENTIFYING_WORDS` from it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

from harness import circumstances

from embrew.adapting.preparation.matching import text_key
from embrew.data.formats import read_file
from embrew.data.reading import expand

RESULT = Path(__file__).parent / "results" / "shared-answers.json"
MOST = 12  # words; longer answers count as this


def main() -> None:
    """Count and write."""
    questions: dict[str, set[str]] = defaultdict(set)
    for file in sorted(Path(expand("$EMBREW_DATA/squad_instruct")).glob("*.jsonl.gz")):
        for record in read_file(file):
            questions[text_key(record.values["target"])].add(text_key(record.values["instruction"]))
    pairs: Counter[int] = Counter()
    shared: Counter[int] = Counter()
    for answer, asked in questions.items():
        words = min(len(answer.split()), MOST)
        pairs[words] += len(asked)
        shared[words] += len(asked) if len(asked) > 1 else 0
    rows = [{"words": n, "pairs": pairs[n], "share": round(shared[n] / pairs[n], 4)} for n in sorted(pairs)]
    about = {"data": "SQuAD 1.1, train and dev", **circumstances("python benchmarks/shared_answers.py")}
    RESULT.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
