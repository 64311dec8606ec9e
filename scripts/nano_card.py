"""nano's card: what it was trained on, what was measured of exactly these weights, and the plot of its training."""

import argparse
import hashlib
import json
import math
import platform
import statistics
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from nano_corpus import LICENCES, validation_texts
from transformers import AutoModelForCausalLM, AutoTokenizer

from embrew import assembly
from embrew.analysis.plots import TWO, drawing
from embrew.evaluation import averages, evaluate, read_suite
from embrew.files.writing import atomic_path, write_json
from embrew.recipe import Recipe

PROMPTS = (
    "The history of the city begins",
    "In physics, energy is",
    "She opened the door and",
    "Return the number of",
    "The government announced on Monday that",
)
POSITIONS = ((0, 256), (256, 512), (512, 1024))
SETS = ("lm_corpus", "wiki_paragraphs")
Document = tuple[list[int], int]  # token ids from <s> on, and the bytes of text they stand for


def valid_documents(folder: Path, tokenizer: Any, *, limit: int = 150) -> list[Document]:
    """The first 150 documents of a validation set: their first 1,500 characters, at most 512 tokens."""
    return cut_documents(validation_texts(folder.parent, folder.name), tokenizer, limit=limit)


def cut_documents(texts: Iterable[str], tokenizer: Any, *, limit: int) -> list[Document]:
    """The first texts: of each the first 1,500 characters, at most 512 tokens."""
    documents = []
    for text in list(texts)[:limit]:
        encoded = tokenizer(text[:1500], return_offsets_mapping=True, truncation=True, max_length=512)
        end = encoded["offset_mapping"][-1][1]
        documents.append((encoded["input_ids"], len(text[:end].encode())))
    return documents


@torch.no_grad()
def validation_loss(model: Any, documents: list[Document], *, device: str = "cpu") -> tuple[float, float]:
    """Nats a token and bits a byte, every document by itself from `<s>` on, in float32."""
    nats, tokens, size = 0.0, 0, 0
    order = sorted(documents, key=lambda document: len(document[0]))
    for start in range(0, len(order), 8):
        rows = [torch.tensor(ids) for ids, _ in order[start : start + 8]]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)  # causal: what is behind is not seen
        labels = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100).to(device)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        nats += float(F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"))
        tokens += sum(len(row) - 1 for row in rows)
        size += sum(count for _, count in order[start : start + 8])
    return nats / tokens, nats / math.log(2) / size


def write_card(args: argparse.Namespace) -> None:
    """Measure the model in `--out`, and the one in `--start` beside it; write `README.md`, the plot, the figures."""
    folder = args.out / "model"
    figures: dict[str, Any] = {"new": measure(folder, args.data)}
    if args.start:
        figures["old"] = measure(args.start, args.data)
    figures["continuations"] = continuations(folder)
    figures["nats_by_position"] = nats_by_position(folder, args.data)
    write_json(args.out / "card.json", figures)
    log = [json.loads(line) for line in (args.out / "log.jsonl").read_text().splitlines()]
    plot(log, figures, args.out / "training.png")
    corpus = json.loads((args.out / "corpus.json").read_text())
    with atomic_path(folder / "README.md") as temporary:
        temporary.write_text(card(args, figures, corpus, log), encoding="utf-8")


def measure(folder: Path, data: Path) -> dict[str, Any]:
    """Validation loss, bits per byte, and zero-shot STS by two poolings."""
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()
    with open(folder / "model.safetensors", "rb") as file:
        found: dict[str, Any] = {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    found["megabytes"] = (folder / "model.safetensors").stat().st_size / 1e6
    found["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    for name in SETS:
        loss, bits = validation_loss(model, valid_documents(data / name, tokenizer))
        found[name] = {"loss": loss, "bits_per_byte": bits}
    suite = read_suite("sts", data=data)
    for pooling in ("last-token", "mean"):
        encoder = assembly.encoder(Recipe.load(f"baselines/{pooling}", [f"encoder.model={folder.resolve()}"]))
        results = evaluate(encoder, suite)
        scores = {result.task: result.main_score for result in results}
        found[pooling] = scores | {"avg5": averages(results, suite.averages)["avg5"]}
    return found


def continuations(folder: Path) -> dict[str, str]:
    """Forty sampled tokens after each prompt (temperature 0.7, seed 0)."""
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()
    found = {}
    for prompt in PROMPTS:
        torch.manual_seed(0)
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=True, temperature=0.7
        )
        text = tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
        found[prompt] = " ".join(text.split())
    return found


@torch.no_grad()
def nats_by_position(folder: Path, data: Path, *, documents: int = 40) -> dict[str, float]:
    """Mean loss of a token by its place, on long validation documents: whether the whole context is of use."""
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()
    long = (tokenizer(text[:8000])["input_ids"][:1024] for text in validation_texts(data, "lm_corpus"))
    rows = [ids for ids in long if len(ids) == 1024][:documents]
    if not rows:
        return {}
    losses = []
    for ids in torch.tensor(rows).split(4):
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        losses.append(F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none"))
    nats = torch.cat(losses).mean(dim=0)
    return {f"{start}-{end}": float(nats[start:end].mean()) for start, end in POSITIONS}


def plot(log: list[dict[str, Any]], figures: dict[str, Any], path: Path) -> None:
    """Loss and bits per byte against tokens."""
    steps = [line for line in log if "loss" in line]
    tokens, losses = [line["tokens"] / 1e6 for line in steps], [line["loss"] for line in steps]
    width = max(1, len(steps) // 40)
    smooth = [statistics.fmean(losses[max(0, i - width) : i + 1]) for i in range(len(steps))]
    valid = [line for line in log if f"{SETS[0]}_bits_per_byte" in line]
    with drawing(path, 10, 3.8) as figure:
        left, right = figure.subplots(1, 2)
        left.plot(tokens, losses, color=TWO[0], alpha=0.4, linewidth=0.8)
        left.plot(tokens, smooth, color=TWO[0], linewidth=1.8)
        left.set_ylabel("training loss in nats per token")
        for name, colour in zip(SETS, TWO, strict=True):
            bits = [line[f"{name}_bits_per_byte"] for line in valid]
            right.plot([line["tokens"] / 1e6 for line in valid], bits, "o-", markersize=3, color=colour, label=name)
            if "old" in figures:
                right.axhline(figures["old"][name]["bits_per_byte"], color=colour, linestyle=":", linewidth=1)
        right.set_ylabel("bits per byte, validation" + (" (dotted: before)" if "old" in figures else ""))
        right.legend()
        for axes in (left, right):
            axes.set_xlabel("million tokens")


def card(args: argparse.Namespace, figures: dict[str, Any], corpus: dict[str, Any], log: list[dict[str, Any]]) -> str:
    """The card as Markdown."""
    config = json.loads((args.out / "model" / "config.json").read_text())
    new, old = figures["new"], figures.get("old")
    tokens = max(line["tokens"] for line in log)
    sources = [
        f"| {name} | {LICENCES.get(name, 'permissive, see below')} | {corpus['documents'][name]:,} | "
        f"{corpus['characters'][name] / 1e6:.1f} | {corpus['weights'].get(name, 1):g} |"
        for name in sorted(corpus["documents"], key=lambda name: -corpus["characters"][name])
    ]
    columns = ["v1", "before"] if old else ["v1"]
    models = [new, old] if old else [new]

    def row(label: str, pick: Any, form: str = "{:.3f}") -> str:
        return f"| {label} | " + " | ".join(form.format(pick(model)) for model in models) + " |"

    rows = [
        *(row(f"{name}, bits per byte", lambda m, n=name: m[n]["bits_per_byte"]) for name in SETS),
        *(row(f"{name}, nats a token", lambda m, n=name: m[n]["loss"]) for name in SETS),
        *(
            row(f"{task}, zero-shot, {pooling} (Spearman × 100)", lambda m, p=pooling, t=task: 100 * m[p][t], "{:.1f}")
            for task in ("STSB", "avg5")
            for pooling in ("last-token", "mean")
        ),
    ]
    licences = sorted(set(corpus["packages"].values()))
    start = (
        f"The weights start from an earlier nano (sha256 {old['sha256'][:12]}…, 12.65 million tokens of such text) "
        if old
        else "The weights start from scratch "
    )
    hardware = f"a GPU ({torch.cuda.get_device_name()})" if args.device == "cuda" else "two CPU cores"
    prose = {
        "what": f"""A causal language model of {new["parameters"]:,} parameters for embrew: Llama architecture (hidden
            {config["hidden_size"]}, {config["num_hidden_layers"]} layers, {config["num_attention_heads"]} heads with
            {config["num_key_value_heads"]} key-value heads of {config["head_dim"]}, MLP {config["intermediate_size"]},
            context {config["max_position_embeddings"]:,}, tied embeddings) and a byte-level BPE of
            {config["vocab_size"]:,} (NFC, digits one by one; `<s>` is put in front by the tokenizer, `</s>` ends a
            document; `<pad>`). {new["megabytes"]:.1f} MB in bfloat16, sha256 {new["sha256"]}. Licence: Apache 2.0.""",
        "trained": f"""{start}and saw {tokens / 1e6:.1f} million tokens more of {corpus["tokens"] / 1e6:.1f} million, on
            {hardware}: {tokens // args.batch_tokens:,} steps of {args.batch_tokens:,} tokens in rows of 512, and of
            1,024 while the rate fell; {args.optimizer} at {args.muon_rate:g} for the layers' matrices (weight decay
            {args.muon_weight_decay:g}), AdamW at {args.adamw_rate:g} for embeddings and norms, {args.warmup} steps of
            warm-up, a linear fall to zero over the last {args.decay:.0%}, gradients clipped at 1, {args.precision},
            seed {args.seed}.""",
        "removed": f"""Lines of 60 characters and more are kept once ({corpus["repeated_lines"]:,} repetitions removed);
            sentences that occur in an STS or retrieval test set at hand were removed ({corpus["test_sentences"]:,}),
            and so were sentences of the packages the demonstration holds out ({corpus["demo_sentences"]:,}:
            networkx, scikit-learn, rich, pydantic and fsspec to test on, huggingface_hub, jinja2 and scipy to choose
            by). lm_corpus/valid and wiki_paragraphs/valid were never trained on ({corpus["validation_lines"]:,} of
            their lines found and removed).""",
        "licences": f"""Documentation is that of {len(corpus["packages"])} installed packages and modules of the
            standard library whose licence is permissive: {"; ".join(licences)}.""",
        "limits": """Hours of training, not months: it has grammar and topics, not facts, and English only. It exists so
            that everything in embrew runs offline in minutes, and differences between methods can be seen. Do not use
            what it writes.""",
    }
    positions = ", ".join(f"{place}: {nats:.3f}" for place, nats in figures["nats_by_position"].items())
    prose |= {
        "measured": """Bits per byte on the first 150 documents of each validation set (first 1,500 characters, at most
            512 tokens); STS by the suite `sts`.""",
        "positions": f"""Loss by a token's place in validation documents of 1,024 tokens and more, in nats:
            {positions}.""",
        "versions": f"""Python {platform.python_version()}, torch {torch.__version__.partition("+")[0]}. What the data
            folder holds is said in the script; the text itself is not part of the repository.""",
    }
    text = {key: textwrap.fill(" ".join(value.split()), 120) for key, value in prose.items()}
    generated = [f"- **{prompt}** {words}" for prompt, words in figures["continuations"].items()]
    command = f"python scripts/pretrain_nano.py --data $EMBREW_DATA --out runs/nano --tokens {tokens / 1e6:g}e6" + (
        " --start FOLDER-OF-THE-EARLIER-NANO" if old else ""
    )
    return "\n".join(
        [
            "# embrew-nano v1", "", text["what"], "", "## Training", "", text["trained"], "",
            "| source | licence | documents | million characters | weight |", "|---|---|---|---|---|", *sources, "",
            text["licences"], "", text["removed"], "", "## Measured", "",
            text["measured"], "",
            "| | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|", *rows, "",
            text["positions"], "",
            f"Continuations (temperature 0.7, seed 0; sha256 {new['sha256'][:12]}):", "", *generated, "",
            "## Limits", "", text["limits"], "", "## Reproduce", "", "```bash", command, "```", "",
            text["versions"], "",
        ]
    )  # fmt: skip
