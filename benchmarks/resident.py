"""One resident SmolLM2 with its encoders: `python benchmarks/resident.py WORK MODEL`.

Trains five encoders of MODEL for a few steps by shipped recipes, once (contrast, LLM2Comp's chain of two LoRAs, EPIC
with a context, two small LoRAs as of `adapt`; $EMBREW_DATA has the data), so their vectors are of no use. Then it
measures the proofs of `embrew serve MODEL --encoder NAME=DIR … --chat`: logits, vectors, requests that do not mix,
memory, and the latency of embeddings beside a running chat. Results go to `results/resident.md` and `.json`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from harness import SEED, circumstances, origin, table, write

from embrew import Context, Demonstration, Encoder, Recipe, Resident, train
from embrew.chat import Sampling, prompt_ids
from embrew.storage.base_model import open_base

COMMAND = "python benchmarks/resident.py WORK MODEL"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
RECIPES = {  # recipe, and what differs: few steps, small batches, one data set
    "contrast": ("baselines/contrastive-smollm2", ["medquad_pairs"], {}),
    "llm2comp": ("llm2comp/smollm2", ["wiki_paragraphs", "medquad_pairs"], {}),
    "epic": ("epic/nano", ["medquad_pairs"], {}),
    "adapt-1": ("baselines/contrastive-smollm2", ["medquad_pairs"], {"encoder.lora.r": 8, "seed": 1}),
    "adapt-2": ("baselines/contrastive-smollm2", ["cosqa_pairs"], {"encoder.lora.r": 8, "seed": 2}),
}
THREE = ("contrast", "llm2comp", "epic")
TEXTS = [f"{text} Number {i}." for i in range(6) for text in (
    "A lake is a body of water that is surrounded by land.", "How is a fever treated at home?",
    "The committee met on Tuesday to talk about the budget of the coming year, and adjourned without a decision.",
    "Sort a list of tuples by the second item.",
)]  # fmt: skip
QUESTIONS = [
    [{"role": "user", "content": text}] for text in ("What is a lake?", "Name three colours.", "Who was Bach?")
]
ROUNDS, REQUESTS, MIXED = 4, 15, 1000


def main() -> None:
    """Train what is not there, measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("model")
    parser.add_argument("--mixed", type=int, default=MIXED)
    asked = parser.parse_args()
    folders = {name: trained(name, asked.work, asked.model) for name in RECIPES}
    template = asked.work / "chat.jinja"
    template.write_text(TEMPLATE)
    right, proofs = in_process(asked.model, folders)
    found = {"texts": len(TEXTS), **proofs, **served(asked.model, folders, template, right, asked.mixed)}
    around = circumstances(COMMAND + ("" if asked.mixed == MIXED else f" --mixed {asked.mixed}"))
    print(json.dumps(found, indent=2))
    write("resident", page(found, around), {**around, **found})


def trained(name: str, work: Path, model: str) -> Path:
    """Return the folder of an encoder."""
    place = work / name
    if not (place / "run.json").exists():
        recipe_name, data, changes = RECIPES[name]
        changes = {"encoder.model": model, "encoder.max_length": {"query": 64, "document": 64}, **changes}
        for stage, source in zip(Recipe.load(recipe_name).stages, data, strict=True):
            rows = {"path": f"$EMBREW_DATA/{source}", "max_rows": 400}
            rows |= {"max_chars": 2000, "min_chars": 200} if source == "wiki_paragraphs" else {"max_chars": 600}
            rows |= {"instruction": "Find the answer: "} if name == "epic" else {}
            data_sets = [rows] if stage.mix is None else [rows, {**rows, "path": "$EMBREW_DATA/cosqa_pairs"}]
            changes |= {f"stages.{stage.name}.data": data_sets, f"stages.{stage.name}.training.max_steps": 3}
            if stage.name == "compress":
                changes[f"stages.{stage.name}.objective.held_out"] = 0
                changes[f"stages.{stage.name}.training.per_device_train_batch_size"] = 4
            else:
                changes[f"stages.{stage.name}.batch.size"] = 8
        overrides = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
        train(Recipe.load(recipe_name, overrides), place, verify="off")
    (final,) = [path.parent for path in place.glob("supervised/embrew.json")]
    if name == "epic" and not Encoder.from_pretrained(final).contexts:
        encoder = Encoder.from_pretrained(final)
        pairs = (Demonstration("What is a lake?", TEXTS[0]), Demonstration("Is a fever dangerous?", TEXTS[1]))
        encoder.add_context("answers", Context("Find the answer: ", pairs))
        encoder.save_pretrained(final, overwrite=True, verify="off")
    return final


def asked_of(name: str) -> dict[str, str]:
    return {"prompt_name": "answers"} if name == "epic" else {"input_type": "query"}


def in_process(model: str, folders: Mapping[str, Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return vectors and texts that are right, each computed alone; and how a resident model differs from them."""
    alone: dict[str, Any] = {}
    for name, folder in folders.items():
        encoder = Encoder.from_pretrained(folder, dtype="float32", merge_adapter=True)
        vectors = encoder.encode(TEXTS, "answers") if name == "epic" else encoder.encode_query(TEXTS)
        alone[name] = vectors
    plain, tokenizer, _ = open_base(model)
    ids = [torch.tensor([prompt_ids(tokenizer, question, TEMPLATE)]) for question in QUESTIONS]
    with torch.no_grad():
        logits = [plain(each).logits for each in ids]
        options = {"max_new_tokens": 12, "do_sample": False}
        written = [plain.generate(each, attention_mask=torch.ones_like(each), **options) for each in ids]
    alone["chats"] = [
        tokenizer.decode(out[0, each.shape[1] :], skip_special_tokens=True)
        for out, each in zip(written, ids, strict=True)
    ]
    resident, size = Resident.open(model), tensors(plain)
    seconds, own, gaps = {}, {}, {}
    for name, folder in folders.items():
        begun = time.perf_counter()
        encoder = resident.load(name, folder)
        seconds[name] = round(time.perf_counter() - begun, 2)
        own[name] = tensors(encoder, besides=resident.model)
        vectors = encoder.encode(TEXTS, "answers") if name == "epic" else encoder.encode_query(TEXTS)
        gaps[name] = float(np.abs(vectors - alone[name]).max())
    with torch.no_grad():
        equal = all(torch.equal(resident.model(each).logits, one) for each, one in zip(ids, logits, strict=True))
    greedy = Sampling(max_tokens=12, temperature=0)
    texts = [resident.chat(question, chat_template=TEMPLATE, sampling=greedy).text for question in QUESTIONS]
    three = sum(own[name] for name in THREE)
    return alone, {
        "logits_equal_to_the_bit": equal and texts == alone["chats"],
        "largest_difference_of_vectors": gaps,
        "seconds_to_load": seconds,
        "bytes_of_base": size,
        "bytes_of_encoders": own,
        "tensors_ratio": round((size + three) / size, 4),
    }


def tensors(module: torch.nn.Module, besides: torch.nn.Module | None = None) -> int:
    """Return the bytes of a module's tensors, each counted once."""
    others = set() if besides is None else {tensor.data_ptr() for tensor in besides.state_dict().values()}
    sizes = {tensor.data_ptr(): tensor.nbytes for tensor in module.state_dict().values()}
    return sum(size for pointer, size in sizes.items() if pointer not in others)


@contextmanager
def serving(model: str, *options: str) -> Iterator[tuple[str, int]]:
    """Run `embrew serve` as a process; yields its address and its id."""
    command = [sys.executable, "-m", "embrew", "serve", model, "--port", "0", "--quiet", "--chat", *options]
    port = _free_port()
    command[command.index("0")] = str(port)
    process = subprocess.Popen(command)
    address = f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                if httpx.get(f"{address}/health", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            if process.poll() is not None:
                raise RuntimeError("the server ended")
            time.sleep(0.2)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def memory(process: int) -> float:
    """Return the resident memory of a process that is its own, in MiB."""
    rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[1]) / 1024  # type: ignore[index]


def served(
    model: str, folders: Mapping[str, Path], template: Path, right: Mapping[str, Any], mixed: int
) -> dict[str, Any]:
    """Measure a server without encoders, and one with three of them."""
    shared = ("--chat-template", str(template), "--dtype", "float32")
    found: dict[str, Any] = {}
    with serving(model, *shared) as (address, process):
        chat(address, QUESTIONS[0])
        found["mib_of_base_alone"] = round(memory(process), 1)
    encoders = [part for name in THREE for part in ("--encoder", f"{name}={folders[name]}")]
    with serving(model, *shared, *encoders) as (address, process):
        chat(address, QUESTIONS[0])
        for name in THREE:
            embed(address, name, [0])
        found["mib_with_three_encoders"] = round(memory(process), 1)
        found["memory_ratio"] = round(found["mib_with_three_encoders"] / found["mib_of_base_alone"], 4)
        found["latency"] = latency(address)
        found["mixed_requests"] = mix(address, right, mixed)
    return found


def embed(address: str, name: str, which: list[int]) -> np.ndarray:
    body = {"model": name, "input": [TEXTS[i] for i in which], **asked_of(name)}
    answer = httpx.post(f"{address}/v1/embeddings", json=body, timeout=300).raise_for_status()
    return np.array([item["embedding"] for item in answer.json()["data"]])


def chat(address: str, messages: Any, tokens: int = 12) -> str:
    body = {"messages": messages, "max_tokens": tokens, "temperature": 0}
    answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=300).raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"])


def latency(address: str) -> dict[str, Any]:
    """Return milliseconds per request of one text, one at a time, alone and beside a chat; rounds take turns."""
    found: dict[str, list[float]] = {"alone": [], "beside a chat": []}
    tokens: list[float] = []
    for _ in range(ROUNDS):
        found["alone"] += seconds_of(lambda i: embed(address, THREE[i % 3], [i % len(TEXTS)]))
        ends = threading.Event()
        writer = threading.Thread(target=keep_writing, args=(address, ends, tokens))
        writer.start()
        time.sleep(1)
        found["beside a chat"] += seconds_of(lambda i: embed(address, THREE[i % 3], [i % len(TEXTS)]))
        ends.set()
        writer.join()
    medians = {name: statistics.median(values) for name, values in found.items()}
    slow = {name: float(np.quantile(values, 0.95)) for name, values in found.items()}
    return {
        "ms": {name: round(1000 * value, 1) for name, value in medians.items()},
        "ms_p95": {name: round(1000 * value, 1) for name, value in slow.items()},
        "ratio": round(medians["beside a chat"] / medians["alone"], 3),
        "ratio_p95": round(slow["beside a chat"] / slow["alone"], 3),
        "requests": len(found["alone"]),
        "chat_tokens_per_second_beside": round(sum(tokens) / len(tokens), 2),
    }


def seconds_of(call: Callable[[int], Any]) -> list[float]:
    taken = []
    for i in range(REQUESTS):
        begun = time.perf_counter()
        call(i)
        taken.append(time.perf_counter() - begun)
    return taken


def keep_writing(address: str, ends: threading.Event, speeds: list[float]) -> None:
    """Stream answers until told to end; note tokens per second."""
    begun, count = time.perf_counter(), 0
    while not ends.is_set():
        body = {"messages": QUESTIONS[0], "max_tokens": 400, "seed": SEED, "stream": True}
        with httpx.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=300) as answer:
            for line in answer.iter_lines():
                count += line.startswith("data: {")
                if ends.is_set():
                    break
    speeds.append(count / (time.perf_counter() - begun))


def mix(address: str, right: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Ask three encoders and the chat at one time; return the largest difference to what each gives alone."""

    def one(number: int) -> float:
        if number % 10 == 0:
            which = number // 10 % len(QUESTIONS)
            return 0.0 if chat(address, QUESTIONS[which]) == right["chats"][which] else float("inf")
        name, some = THREE[number % 3], [number % len(TEXTS), (7 * number + 3) % len(TEXTS)]
        return float(np.abs(embed(address, name, some) - right[name][some]).max())

    begun = time.perf_counter()
    with ThreadPoolExecutor(12) as pool:
        gaps = list(pool.map(one, range(count)))
    return {"requests": count, "largest_difference": max(gaps), "seconds": round(time.perf_counter() - begun, 1)}


def page(found: Mapping[str, Any], around: Mapping[str, Any]) -> list[str]:
    """Return the page."""
    mixed, gaps, times = found["mixed_requests"], found["largest_difference_of_vectors"], found["latency"]
    base, alone, beside = found["bytes_of_base"] / 2**20, times["ms"]["alone"], times["ms"]["beside a chat"]
    goals = [
        ("logits and greedy chats are the base's to the bit", str(found["logits_equal_to_the_bit"]).lower(), "true"),
        ("largest difference of vectors to the encoders opened alone", f"{max(gaps.values()):.1e}", "≤ 1e-5"),
        (f"the same in {mixed['requests']} mixed requests with chats", f"{mixed['largest_difference']:.1e}", "≤ 1e-5"),
        ("memory of the process with 3 encoders / base alone", f"{found['memory_ratio']:.3f}", "≤ 1.15"),
        ("tensors of base and 3 encoders / base", f"{found['tensors_ratio']:.3f}", ""),
        ("median latency of an embedding beside a chat / alone", f"{times['ratio']:.2f}", "≤ 2"),
        ("the same, 95th percentile", f"{times['ratio_p95']:.2f}", ""),
    ]
    rows = [
        (name, f"{size / 2**20:.1f}", f"{found['seconds_to_load'][name]:.2f}", f"{gaps[name]:.1e}")
        for name, size in found["bytes_of_encoders"].items()
    ]
    return [
        "# One resident language model",
        "",
        "SmolLM2-135M in float32, which chats and embeds as encoders that were trained for 3 steps.",
        "",
        *table(("what", "measured", "goal"), goals),
        "",
        *table(("encoder", "MiB of its own", "seconds to load", "difference to the encoder alone"), rows),
        "",
        f"The base has {base:.0f} MiB. One embedding took {alone:.0f} ms alone and {beside:.0f} ms beside a chat, "
        f"which wrote {times['chat_tokens_per_second_beside']:.1f} tokens per second meanwhile.",
        "",
        *origin(around),
        f"- seed: {around['seed']}",
    ]


if __name__ == "__main__":
    os.environ.setdefault("EMBREW_DATA", str(Path("data").absolute()))
    gc.collect()
    main()
