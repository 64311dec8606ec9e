"""How far back a continuation looks: what a causal LM loses when it sees only the last tokens of a context.

    python benchmarks/local_signal.py nano $EMBREW_DATA/wiki_paragraphs/valid.jsonl.gz --min-chars 400
    python benchmarks/local_signal.py $WORLD/teacher/model $WORLD/valid.jsonl --context 8 --rows 8 \\
        --name local-signal-world

A text is split at a random token. KL is that of LLM2Comp's distillation, per predicted token: from the model that has
read the whole context to the same model that has read its last k tokens (k = 0: BOS alone). The worth of a context is
the NLL of a target without it less the NLL with it; the targets are the continuation, and the context itself, written
again. Nothing is trained, and none of embrew's objectives is used: transformers' own forward, one text at a time.
Results: `benchmarks/results/NAME.json`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, circumstances
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from embrew.files.writing import write_json
from embrew.storage.base_model import ASSETS

LAST = (0, 1, 2, 4, 8, 16, 32)
BLOCK = 8  # predictions
COUNT, LONGEST, SEED = 256, 128, 1  # texts; tokens of a text, at most; of the places where texts are split


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="`nano`, or a folder of a causal LM")
    parser.add_argument("texts", type=Path, help="JSON lines with `text`, gzip or not")
    parser.add_argument("--name", default="local-signal", help="of the result files")
    parser.add_argument("--context", type=int, default=32, help="the least tokens of a context")
    parser.add_argument("--rows", type=int, default=32, help="predictions of a target")
    parser.add_argument("--min-chars", type=int, default=0, help="of a text")
    arguments = parser.parse_args()
    folder = str(ASSETS["nano"]) if arguments.model == "nano" else arguments.model
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    splits = split(tokenizer, read(arguments.texts, arguments.min_chars), arguments)
    record = summary([measure(model, tokenizer.bos_token_id, *one) for one in splits])
    shown = "/".join(Path(arguments.model).parts[-2:])  # without this machine's paths
    options = f"--min-chars {arguments.min_chars} --context {arguments.context} --rows {arguments.rows}"
    words = f"python benchmarks/local_signal.py {shown} {'/'.join(arguments.texts.parts[-2:])} {options}"
    record |= {**circumstances(words), "model": shown, "texts": len(splits), "seed": SEED}
    write_json(RESULTS / f"{arguments.name}.json", record)
    print(json.dumps(record, indent=2))


def read(path: Path, min_chars: int) -> list[str]:
    """Return the texts of a file that have at least `min_chars` characters."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        texts = [json.loads(line)["text"] for line in file]
    return [text for text in texts if len(text) >= min_chars]


def split(tokenizer: Any, texts: list[str], given: argparse.Namespace) -> list[tuple[list[int], list[int]]]:
    """Return contexts and targets: token ids, split at a random place that leaves both their least lengths."""
    rng = random.Random(SEED)
    rng.shuffle(texts)
    found: list[tuple[list[int], list[int]]] = []
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"][:LONGEST]
        if len(ids) >= given.context + given.rows:
            at = rng.randint(given.context, len(ids) - given.rows)
            found.append((ids[:at], ids[at : at + given.rows]))
        if len(found) == COUNT:
            return found
    raise SystemExit(f"{len(found)} texts have {given.context + given.rows} tokens; {COUNT} are wanted")


@torch.no_grad()
def predictions(model: Any, before: Sequence[int], target: Sequence[int]) -> Tensor:
    """Return log-probabilities of every token of a target `(rows, vocabulary)`, float32."""
    logits = model(torch.tensor([[*before, *target[:-1]]])).logits[0, len(before) - 1 :]
    return logits.float().log_softmax(-1)


def nll(scores: Tensor, target: Sequence[int]) -> float:
    """Return the mean negative log-probability of the target's tokens."""
    return -float(scores.gather(1, torch.tensor(target)[:, None]).mean())


def measure(model: Any, bos: int, context: list[int], target: list[int]) -> dict[str, Any]:
    """Return KL by k and row, and the worth of the context to the continuation and to the same text, for one text."""
    whole = predictions(model, [bos, *context], target)
    divergences, losses = {}, {}
    for k in LAST:
        if k > len(context):
            continue
        seen = predictions(model, [bos, *context[len(context) - k :]], target)
        divergences[k] = (whole.exp() * (whole - seen)).sum(-1).tolist()
        losses[k] = nll(seen, target)
    alone, again = (nll(predictions(model, before, context), context) for before in ([bos], [bos, *context]))
    return {
        "kl": divergences,
        "continuation": losses[0] - nll(whole, target),
        "same": alone - again,
    }


def summary(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return means over texts: KL by k (all predictions, blocks of them, share closed) and what contexts are worth."""
    found: dict[str, Any] = {"last": {}}
    for k in LAST:
        several = [one["kl"][k] for one in measured if k in one["kl"]]
        if len(several) < len(measured):
            continue
        rows = [statistics.fmean(column) for column in zip(*several, strict=True)]
        blocks = [statistics.fmean(rows[i : i + BLOCK]) for i in range(0, len(rows), BLOCK)]
        found["last"][str(k)] = {"kl": statistics.fmean(rows), "blocks": blocks}
    none = found["last"]["0"]["kl"]
    for one in found["last"].values():
        one["share"] = 1 - one["kl"] / none
    for name in ("continuation", "same"):
        found[name] = statistics.fmean(one[name] for one in measured)
    return found


if __name__ == "__main__":
    main()
