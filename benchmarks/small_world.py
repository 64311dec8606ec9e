"""The small world's command: `python benchmarks/small_world.py make|teacher|epic|bugs [--out runs/world]`.

`make` writes the language's documents, the tokenizer and the controls' data below `--out`; `teacher` measures the
language model that `scripts/pretrain_nano.py` trained on them (see benchmarks/small-models.md) and writes
`benchmarks/results/world-teacher.json`. `epic PLAN` runs the plan of EPIC's control, `bugs [NAME ...]` plants
bugs in the controls; the plans of the other controls are run by `evidence.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from dataclasses import asdict
from pathlib import Path

import harness
from harness import circumstances
from world.choices import sample
from world.facts import World, make_world
from world.folders import write_rows
from world.language import document
from world.tasks import write_following, write_paraphrase, write_relations, write_signs
from world.teacher import measure_facts, measure_gap
from world.tokenizer import make_tokenizer

from embrew.files.writing import write_json

DOCUMENTS, VALID = 120_000, 2_000
GOAL = 0.05  # of the generator's entropy


def main() -> int:
    """Run a command; 1 if the teacher misses its goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("make", "teacher", "epic", "bugs"))
    parser.add_argument("names", nargs="*", help="epic: the plan; bugs: names of bugs (default: all)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/world"), help="folder of the world (default: runs/world)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the world and of its documents (default: 0)")
    parser.add_argument("--documents", type=int, default=DOCUMENTS, help=f"to train on (default: {DOCUMENTS:,})")
    parser.add_argument("--only", default="", help="epic: a pattern of `ROW, seed N`: train these only")
    parser.add_argument("--work", type=Path, default=Path("runs/evidence"), help="folder of what is trained")
    parser.add_argument("--output", type=Path, default=harness.RESULTS, help="folder of the result files")
    arguments = parser.parse_args()
    world = make_world(arguments.seed)
    if arguments.command == "make":
        make(world, arguments)
        return 0
    os.environ.setdefault("WORLD", str(arguments.out))
    harness.one_core()
    places = {"work": arguments.work, "output": arguments.output}
    if arguments.command == "epic":
        from world import epic_control

        for plan in arguments.names:
            epic_control.run(Path(plan), world, arguments.out, **places, only=arguments.only)
        return 0
    if arguments.command == "bugs":
        from world import planted

        planted.run(arguments.names, harness.HERE / "plans", world, arguments.out, **places)
        return 0
    return teacher(world, arguments)


def make(world: World, arguments: argparse.Namespace) -> None:
    """Write all files of a world; the same for the same seed."""
    out, seed = arguments.out, arguments.seed
    write_rows(out / "world.json", [asdict(world)])
    make_tokenizer(world).save_pretrained(out / "tokenizer")
    for name, count in (("train", arguments.documents), ("valid", VALID)):
        rng = random.Random(f"documents {seed} {name}")
        drawn = (sample(lambda choices: document(world, choices), rng) for _ in range(count))
        write_rows(out / f"{name}.jsonl", ({"text": text, "log_prob": log_prob} for text, log_prob in drawn))
    write_paraphrase(world, out / "paraphrase", seed=seed)
    write_signs(world, out / "signs", seed=seed)
    write_relations(world, out / "relations", seed=seed)
    write_following(world, out / "following", seed=seed)
    print(f"wrote {out}: {len(world.entities)} entities, {arguments.documents:,} documents")


def teacher(world: World, arguments: argparse.Namespace) -> int:
    """Measure a teacher; write the figures."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = arguments.out / "teacher" / "model"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32", trust_remote_code=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    rows = [json.loads(line) for line in (arguments.out / "valid.jsonl").read_text().splitlines()]
    gap = measure_gap(model, tokenizer, [row["text"] for row in rows], [row["log_prob"] for row in rows])
    facts = measure_facts(model, tokenizer, world)
    parameters = sum(p.numel() for p in model.parameters())
    record = {"gap": {**asdict(gap), "share": gap.share, "goal": GOAL}, "facts": facts, "parameters": parameters}
    log = folder.parent / "log.jsonl"
    record["log"] = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    record |= circumstances("python benchmarks/small_world.py teacher")
    write_json(arguments.output / "world-teacher.json", record)
    print(json.dumps({"gap": record["gap"], "facts": facts}, indent=2))
    return 0 if gap.share <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
