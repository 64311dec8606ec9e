"""What 200,000 texts cost: `python benchmarks/scale.py WORK`. Stopped? The same command resumes.

Commands of the command line in processes of their own, on a corpus of random short texts, in 1,000 shards: an encode
that is killed with SIGKILL when half of the shards are finished, the same command again, once more when nothing is left
to do, an update to a corpus where 1 % of the rows changed and as many are new, and a search. Wall and CPU time, and the
peak of resident memory, of every process. Vectors of the update are compared with those of the first run. Results go to
`results/scale.*`; WORK keeps the corpus, the vectors and what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import RESULTS, SEED
from report import circumstances, origin, table

from embrew.corpus import read_vectors
from embrew.encoder import Encoder
from embrew.settings.encoder import Pooling

WORDS = Path(__file__).read_text(encoding="utf-8").split()


def corpus(path: Path, rows: int, *, newer: bool) -> Path:
    """Texts of 4 to 12 words of this file; in the newer version 1 % are changed, 1 % gone, 1 % new at the beginning."""
    generator = random.Random(SEED)
    with path.open("w", encoding="utf-8") as file:
        if newer:
            file.writelines(json.dumps({"_id": f"n{i}", "text": f"a new text {i}"}) + "\n" for i in range(rows // 100))
        for i in range(rows):
            text = f"{i} " + " ".join(generator.choices(WORDS, k=generator.randint(4, 12)))
            if newer and i % 100 == 7:
                continue
            if newer and i % 100 == 50:
                text += " changed"
            file.write(json.dumps({"_id": f"d{i}", "text": text}) + "\n")
    return path


def measured(arguments: list[str], *, until: Callable[[], bool] | None = None) -> dict[str, Any]:
    """Run `embrew`; with `until`, kill it as soon as that holds."""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "embrew", *arguments], stdout=subprocess.PIPE, text=True)
    while until is not None and process.poll() is None and not until():
        time.sleep(0.05)
    if until is not None:
        process.send_signal(signal.SIGKILL)
    said = process.stdout.read() if process.stdout else ""
    _, status, usage = os.wait4(process.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code != (0 if until is None else -signal.SIGKILL):
        raise SystemExit(f"embrew {' '.join(arguments)} ended with {code}")
    return {
        "seconds": time.monotonic() - began,
        "CPU seconds": usage.ru_utime + usage.ru_stime,
        "peak MB": usage.ru_maxrss / 1024,
        "said": said.strip(),
    }


def main() -> None:
    """Measure what is not measured yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--shards", type=int, default=1_000)
    parser.add_argument("--layers", type=int, default=2, help="of nano's six that are run")
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    work: Path = asked.work
    work.mkdir(parents=True, exist_ok=True)
    model, vectors = work / "model", work / "vectors"
    if not model.is_dir():
        encoder = Encoder.from_pretrained("nano", pooling=Pooling("mean"))
        encoder.max_length.update(query=64, document=64)
        encoder.save_pretrained(model, verify="off")
    old, new = work / "corpus.jsonl", work / "corpus-2.jsonl"
    for path, newer in ((old, False), (new, True)):
        if not path.is_file():
            corpus(work / "partial", asked.rows, newer=newer).rename(path)
    state = work / "measured.json"
    found: dict[str, dict[str, Any]] = json.loads(state.read_text()) if state.is_file() else {}
    shard_rows = -(-asked.rows // asked.shards)

    def encode(given: Path, *more: str) -> list[str]:
        options = ["--shard-rows", str(shard_rows), "--num-layers", str(asked.layers), *more]
        return ["encode", str(model), str(given), str(vectors), *options]

    def half() -> bool:
        return len(list(vectors.glob("part-*.parquet"))) >= asked.shards // 2

    def step(name: str, arguments: list[str], until: Callable[[], bool] | None = None) -> None:
        if name not in found:
            found[name] = measured(arguments, until=until)
            state.write_text(json.dumps(found, indent=2))

    def compare(name: str) -> None:
        """Copies of the vectors before and after the update, the rows that were in both."""
        if name in found:
            return
        ids, after = read_vectors(vectors).load()
        before_ids, before = np.load(work / "ids.npy"), np.load(work / "before.npy")
        places = {name: i for i, name in enumerate(before_ids.tolist())}
        kept = [(i, places[name]) for i, name in enumerate(ids) if name in places and int(name[1:]) % 100 != 50]
        one, other = after[[i for i, _ in kept]], before[[i for _, i in kept]]
        found[name] = {"rows": len(kept), "largest difference": float(np.abs(one - other).max())}
        state.write_text(json.dumps(found, indent=2))

    step(f"encode, killed at {asked.shards // 2:,} shards", encode(old), half)
    step("the same command: the other half", encode(old))
    step(f"the same command: {asked.shards:,} shards compared, none encoded", encode(old))
    if not (work / "before.npy").is_file():
        ids, array = read_vectors(vectors).load()
        np.save(work / "ids.npy", np.array(ids))
        np.save(work / "before.npy", array)
    step("encode --update: 1 % changed, 1 % new, 1 % dropped", encode(new, "--update"))
    compare("kept rows")
    question = json.loads(new.read_text(encoding="utf-8").split("\n", 1)[0])["text"]
    search = ["search", str(model), "--index", str(vectors), "-k", "3", question]
    step("search: one question, ids only", search)
    step("search: one question, with texts of the corpus", [*search, "--corpus", str(new)])
    write(asked, found)


def write(asked: argparse.Namespace, found: dict[str, dict[str, Any]]) -> None:
    """The page, and what it was made of."""
    given = f"--rows {asked.rows} --shards {asked.shards} --layers {asked.layers}"
    around = circumstances(f"python benchmarks/scale.py WORK {given}")
    size = sum(path.stat().st_size for path in (asked.work / "vectors").rglob("*") if path.is_file())
    steps = {name: values for name, values in found.items() if "seconds" in values}
    kept = found["kept rows"]
    gap = kept["largest difference"]
    same = f"differ by at most {gap:g} from those before it" if gap else "are those before it, bit by bit"
    lines = [
        "# scale",
        "",
        f"{asked.rows:,} texts of 4 to 12 words through `encode` and `search`, in {asked.shards:,} shards: nano, "
        f"{asked.layers} of its 6 layers, mean pooling, one thread.",
        "",
        *table(
            ["", "s", "CPU s", "peak MB"],
            [
                [name, f"{values['seconds']:,.0f}", f"{values['CPU seconds']:,.0f}", f"{values['peak MB']:,.0f}"]
                for name, values in steps.items()
            ],
        ),
        "",
        f"- {kept['rows']:,} rows kept by the update: their vectors {same}",
        f"- the update said: {steps['encode --update: 1 % changed, 1 % new, 1 % dropped']['said'].splitlines()[-1]}",
        f"- MB on disk, vectors and hashes of texts: {size / 1e6:,.0f}",
        "- seconds include about as many for imports and opening the model as a search with ids only takes",
        "",
        *origin(around),
        f"- seed: {SEED}",
        "",
    ]
    asked.output.mkdir(parents=True, exist_ok=True)
    (asked.output / "scale.md").write_text("\n".join(lines), encoding="utf-8")
    record = {"name": "scale", "rows": asked.rows, "shards": asked.shards, "measured": found, **around}
    text = json.dumps(record, indent=2).replace(str(asked.work.resolve()), "WORK").replace(str(asked.work), "WORK")
    (asked.output / "scale.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
