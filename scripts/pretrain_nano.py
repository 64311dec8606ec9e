"""Pretrain embrew-nano: corpus, tokenizer, packed training. Or a small model on texts of your own.

    python scripts/pretrain_nano.py --data $EMBREW_DATA --out runs/nano --start OLD_NANO --tokens 20e6
    python scripts/pretrain_nano.py --text train.jsonl --valid valid.jsonl --out runs/small --hidden 128 --layers 4

Every step is kept in `--out`; a run that was killed goes on where its last checkpoint was when given again. With
`--start` the architecture, the tokenizer and the weights are those of an earlier model; without it all three are new.
The rate is constant and then falls to zero, so `--tokens` may still change until it begins to fall. Rows are half as
long as the context while it is constant, and as long as the context while it falls.
"""

import argparse
import hashlib
import json
import logging
import math
import random
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from nano_corpus import DOCSTRINGS, Counts, data_hashes, read_corpus, validation_texts
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from embrew.data.formats import read_file
from embrew.files.writing import atomic_folder, atomic_path, write_json

logger = logging.getLogger("pretrain_nano")

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
VOCABULARY, CONTEXT, HEAD = 8192, 1024, 64
WEIGHTS = {"novels": 0.5, DOCSTRINGS: 2.0}  # old prose is rarer than it would be, documentation is read twice
LIMIT_MB = 16
VALID = 500  # documents of --valid
SETS = ("lm_corpus", "wiki_paragraphs")  # below --data, of which the first documents of the validation sets are read
Document = tuple[list[int], int]  # token ids from <s> on, and the bytes of text they stand for


def main() -> None:
    """Run the steps that are not done yet."""
    args = arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    if not (args.out / "corpus.json").exists():
        prepare(args)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(args.out / "tokenizer", trust_remote_code=False)
    blocks = np.load(args.out / "blocks.npy", mmap_mode="r")
    model = train(args, blocks, tokenizer, valid_sets(args, tokenizer))
    export(args, model, tokenizer)


# ---- corpus and tokenizer ------------------------------------------------------------------------------------


def prepare(args: argparse.Namespace) -> None:
    """Read the corpus, train the tokenizer where none is given, write all tokens as blocks of one context each."""
    counts = Counts()
    rng = random.Random(args.seed)
    texts: list[str] = read_texts(args.text) if args.text else []
    for source, text in () if args.text else read_corpus(args.data, counts):
        weight = WEIGHTS.get(source, 1.0)
        texts += [text] * (int(weight) + (rng.random() < weight % 1))
    rng.shuffle(texts)
    logger.info("corpus: %d documents, %d MB", len(texts), sum(map(len, texts)) // 1_000_000)
    if args.start or args.tokenizer:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(args.start or args.tokenizer, trust_remote_code=False)
    else:
        tokenizer = train_tokenizer(texts[: len(texts) // 4] or texts, vocabulary=args.vocabulary, context=args.context)
    tokenizer.save_pretrained(args.out / "tokenizer")
    backend, eos = tokenizer.backend_tokenizer, tokenizer.eos_token_id
    parts = []
    for start in range(0, len(texts), 2000):
        encoded = backend.encode_batch_fast(texts[start : start + 2000])  # each begins with <s>
        parts += [np.asarray([*document.ids, eos], dtype=np.uint16) for document in encoded]
    tokens = np.concatenate(parts)
    with atomic_path(args.out / "blocks.npy") as temporary, open(temporary, "wb") as file:
        np.save(file, tokens[: len(tokens) // args.context * args.context].reshape(-1, args.context))
    read = {"text": sha256(args.text)} if args.text else data_hashes(args.data)
    weights = {} if args.text else WEIGHTS
    facts = {**vars(counts), "weights": weights, "tokens": len(tokens), "data": read}
    write_json(args.out / "corpus.json", facts)
    logger.info("corpus: %.1fM tokens", len(tokens) / 1e6)


def read_texts(file: Path) -> list[str]:
    """Return the column `text` of a file of rows (.jsonl, .jsonl.gz, …)."""
    texts = [record.values.get("text") for record in read_file(file)]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise SystemExit(f"{file}: every row needs a text in the column text")
    return texts


def valid_sets(args: argparse.Namespace, tokenizer: Any) -> dict[str, list[Document]]:
    """Return the documents of each validation set."""
    if args.text:
        return {"valid": cut_documents(read_texts(args.valid), tokenizer, limit=VALID)}
    return {name: cut_documents(validation_texts(args.data, name), tokenizer) for name in SETS}


def cut_documents(texts: Iterable[str], tokenizer: Any, *, limit: int = 150) -> list[Document]:
    """The first texts: of each the first 1,500 characters, at most 512 tokens."""
    documents = []
    for text in islice(texts, limit):
        encoded = tokenizer(text[:1500], return_offsets_mapping=True, truncation=True, max_length=512)
        end = encoded["offset_mapping"][-1][1]
        documents.append((encoded["input_ids"], len(text[:end].encode())))
    return documents


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def train_tokenizer(
    texts: list[str], *, vocabulary: int = VOCABULARY, context: int = CONTEXT
) -> PreTrainedTokenizerFast:
    """Byte-level BPE: every string is made of known tokens, and comes back as it was (after NFC)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[BOS, EOS, PAD], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD, model_max_length=context,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


# ---- training ------------------------------------------------------------------------------------------------


def train(args: argparse.Namespace, blocks: np.ndarray, tokenizer: Any, valid: dict[str, list[Document]]) -> Any:
    """Next-token prediction on packed rows; Muon for the matrices of the layers, AdamW for all the rest."""
    model = open_model(args, tokenizer).to(args.device).train()
    optimizers = make_optimizers(model, args)
    peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    steps = int(args.tokens) // args.batch_tokens
    step = load_checkpoint(args, model, optimizers, steps)
    log = Log(args.out / "log.jsonl", step * args.batch_tokens)
    compiled = torch.compile(mean_loss) if args.compile else mean_loss
    if step == 0:
        log.write(step=0, tokens=0, **validate(model, valid, args))
    began, first, saved = time.time(), step, time.time()
    while step < steps:
        rate = rate_at(step, steps, warmup=args.warmup, decay=args.decay)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            for group, value in zip(optimizer.param_groups, peak, strict=True):
                group["lr"] = value * rate
        ids = torch.from_numpy(batch(blocks, step, args, falling=step >= fall(steps, args.decay))).to(args.device)
        with torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            loss = compiled(model, ids)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not math.isfinite(float(norm)):
            raise SystemExit(f"step {step}: the gradient is not finite; the last checkpoint is kept, lower the rates")
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        step += 1
        if step % 50 == 0 or step == steps:
            speed = (step - first) * args.batch_tokens / (time.time() - began)
            tokens = step * args.batch_tokens
            log.write(step=step, tokens=tokens, loss=float(loss.detach()), rate=rate, tokens_per_second=round(speed))
        if step % args.evaluate_steps == 0 or step == steps:
            log.write(step=step, tokens=step * args.batch_tokens, **validate(model, valid, args))
        if time.time() - saved > 60 * args.checkpoint_minutes or step == steps:
            save_checkpoint(args, model, optimizers, step, steps)
            saved = time.time()
    return model


def open_model(args: argparse.Namespace, tokenizer: Any) -> Any:
    """The model of `--start` in float32, or a new one."""
    if args.start:
        return AutoModelForCausalLM.from_pretrained(args.start, dtype=torch.float32, trust_remote_code=False)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=args.hidden, num_hidden_layers=args.layers, head_dim=args.head_dim,
        num_attention_heads=args.hidden // args.head_dim,
        num_key_value_heads=max(1, args.hidden // (2 * args.head_dim)),
        intermediate_size=64 * round(2.75 * args.hidden / 64), max_position_embeddings=args.context,
        tie_word_embeddings=True, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def make_optimizers(model: Any, args: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the layers' matrices unless `--optimizer adamw`; AdamW for the others."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    adamw = {"lr": args.adamw_rate, "betas": (0.9, 0.95), "weight_decay": 0.0}
    if args.optimizer == "adamw":
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others}]
        return [torch.optim.AdamW(groups, **adamw)]
    muon = torch.optim.Muon(matrices, lr=args.muon_rate, weight_decay=args.muon_weight_decay)
    return [muon, torch.optim.AdamW(others, **adamw)]


def mean_loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Mean next-token loss of `(rows, tokens)`, log-probabilities in float32."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def fall(steps: int, decay: float) -> int:
    """The step from which the rate falls."""
    return round(steps * (1 - decay))


def rate_at(step: int, steps: int, *, warmup: int, decay: float) -> float:
    """Share of the peak rate: a linear warm-up, a plateau, a linear fall to zero over the last `decay` of the steps."""
    return min(1.0, (step + 1) / warmup, (steps - step) / max(1, steps - fall(steps, decay)))


def batch(blocks: np.ndarray, step: int, args: argparse.Namespace, *, falling: bool) -> np.ndarray:
    """The rows of a step: every pass over the blocks has an order of its own, decided by seed and pass alone."""
    per_step = args.batch_tokens // args.context
    places = range(step * per_step, (step + 1) * per_step)
    chosen = [int(order(len(blocks), place // len(blocks), args.seed)[place % len(blocks)]) for place in places]
    rows = blocks[chosen].astype(np.int64)
    return rows if falling else rows.reshape(-1, args.context // 2)


_orders: dict[tuple[int, int, int], np.ndarray] = {}


def order(count: int, epoch: int, seed: int) -> np.ndarray:
    """A permutation, kept between calls."""
    return _orders.setdefault((count, epoch, seed), np.random.default_rng([seed, epoch]).permutation(count))


def validate(model: Any, valid: dict[str, list[Document]], args: argparse.Namespace) -> dict[str, float]:
    """Loss and bits per byte of each validation set."""
    found: dict[str, float] = {}
    for name, documents in valid.items():
        found[f"{name}_loss"], found[f"{name}_bits_per_byte"] = validation_loss(model, documents, device=args.device)
    return found


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


# ---- what survives a kill ------------------------------------------------------------------------------------


def save_checkpoint(args: argparse.Namespace, model: Any, optimizers: list[Any], step: int, steps: int) -> None:
    """Weights, optimizer states and the place in the schedule; the folder is replaced as a whole."""
    with atomic_folder(args.out / "checkpoint", marker="state.json", overwrite=True) as folder:
        save_file(
            {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()},
            folder / "weights.safetensors",
        )
        torch.save([optimizer.state_dict() for optimizer in optimizers], folder / "optimizers.pt")
        write_json(folder / "state.json", {"step": step, "steps": steps, "settings": settings(args)})


def load_checkpoint(args: argparse.Namespace, model: Any, optimizers: list[Any], steps: int) -> int:
    """The step to go on from; 0 without a checkpoint."""
    folder = args.out / "checkpoint"
    if not folder.exists():
        return 0
    state = json.loads((folder / "state.json").read_text())
    given, made = settings(args), state["settings"]
    changed = {key for key in {*given, *made} if given.get(key) != made.get(key)}
    if changed:
        raise SystemExit(f"{folder} was made with other settings ({', '.join(sorted(changed))}); choose another --out")
    if steps != state["steps"] and state["step"] > min(fall(steps, args.decay), fall(state["steps"], args.decay)):
        raise SystemExit(f"{folder}: the rate is falling already; --tokens can no longer change")
    weights = load_file(folder / "weights.safetensors")
    for name, parameter in model.named_parameters():
        parameter.data.copy_(weights[name])
    for optimizer, values in zip(optimizers, torch.load(folder / "optimizers.pt", weights_only=True), strict=True):
        optimizer.load_state_dict(values)
    logger.info("going on from step %d", state["step"])
    return int(state["step"])


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """What decides the weights, apart from how long it goes on."""
    names = ("seed", "batch_tokens", "optimizer", "muon_rate", "muon_weight_decay", "adamw_rate", "warmup", "decay",
             "precision", "hidden", "layers", "context", "head_dim")  # fmt: skip
    return {name: getattr(args, name) for name in names} | {"start": args.start.name if args.start else None}


class Log:
    """Lines of JSON; what a killed run wrote after its last checkpoint is dropped."""

    def __init__(self, path: Path, tokens: int) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in lines if json.loads(line)["tokens"] <= tokens] if tokens else []
        path.write_text("".join(line + "\n" for line in kept))

    def write(self, **values: Any) -> None:
        """Add a line and show it."""
        with self.path.open("a") as file:
            file.write(json.dumps(values) + "\n")
        logger.info(" ".join(f"{key}={value:.4g}" for key, value in values.items()))


def export(args: argparse.Namespace, model: Any, tokenizer: Any) -> None:
    """The model folder in bfloat16."""
    folder = args.out / "model"
    model = model.cpu().to(torch.bfloat16).eval()
    model.config.dtype = torch.bfloat16
    with atomic_folder(folder, marker="config.json", overwrite=True) as new:
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
        about = json.loads((new / "tokenizer_config.json").read_text())
        for key in ("is_local", "local_files_only"):  # of this run, not of the tokenizer
            about.pop(key, None)
        write_json(new / "tokenizer_config.json", about)
        size = (new / "model.safetensors").stat().st_size
        if size > LIMIT_MB * 1e6:
            raise SystemExit(f"the weights take {size / 1e6:.1f} MB; at most {LIMIT_MB} are allowed in the wheel")
    logger.info("wrote %s (%.1f MB)", folder, size / 1e6)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with lm_corpus, wiki_paragraphs and test sets")
    parser.add_argument("--text", type=Path, help="in place of --data: a file of rows with the column text")
    parser.add_argument("--valid", type=Path, help="with --text: rows that are not trained on; the first 500 are read")
    parser.add_argument(
        "--tokenizer", type=Path, help="without --start: a folder with the tokenizer; default: train one"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="a model folder to go on from")
    parser.add_argument("--tokens", type=float, default=20e6)
    parser.add_argument("--hidden", type=int, default=256, help="without --start: width, a multiple of 64")
    parser.add_argument("--layers", type=int, default=6, help="without --start")
    parser.add_argument("--head-dim", type=int, default=HEAD, help="without --start: width of a head")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="size of the tokenizer that is trained")
    parser.add_argument("--context", type=int, default=CONTEXT, help="tokens per row, and the model's positions")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--optimizer", choices=("muon", "adamw"), default="muon")
    parser.add_argument("--muon-rate", type=float, default=0.015)
    parser.add_argument("--muon-weight-decay", type=float, default=0.01)
    parser.add_argument("--adamw-rate", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=100, help="steps")
    parser.add_argument("--decay", type=float, default=0.5, help="share of the steps over which the rate falls")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--evaluate-steps", type=int, default=250)
    parser.add_argument("--checkpoint-minutes", type=float, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if bool(args.data) == bool(args.text) or bool(args.text) != bool(args.valid):
        parser.error("give --data, or --text and --valid")
    if args.batch_tokens % args.context or args.context % 2 or args.hidden % 64 or args.hidden % args.head_dim:
        parser.error(
            f"--batch-tokens must be a multiple of --context={args.context}, which must be even, --hidden of 64 and of "
            f"--head-dim={args.head_dim}"
        )
    return args


if __name__ == "__main__":
    main()
