"""Write the tables of `docs/how-to/run-anywhere.md`: which encoder runs where, by exporting each of them.

    EMBREW_TOKENIZERS=../shared/tokenizers python scripts/runtime_table.py [--checks-only]

Encoders are those of shipped recipes, on tiny random models with tokenizers of public models. Every runtime of
`embrew.runtimes.registry` is a column: its own `check` refuses, and its vectors are compared. With
`--checks-only`, which takes a minute instead of half an hour, nothing is exported, and cells say what was accepted.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tokenizers import processors
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    Gemma3TextConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PhiConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.model.contexts import Context
from embrew.recipe import Recipe, build
from embrew.runtimes.llama_cpp import interpreter
from embrew.runtimes.portable import fixed_form
from embrew.runtimes.registry import RUNTIMES
from embrew.settings.encoder import Demonstration

logger = logging.getLogger(__name__)
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "run-anywhere.md"
OUTCOMES = ("run", "simulated", "written", "accepted")  # any other outcome is the reason of a refusal
BEGIN, END = "<!-- begin: scripts/runtime_table.py -->", "<!-- end -->"
PACKAGES = {"onnx": "onnxruntime", "llama.cpp": "llama_cpp_python"}
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
FAMILIES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "Llama": (LlamaConfig, GROUPED, "mistral"),
    "Mistral": (MistralConfig, {**GROUPED, "sliding_window": None}, "mistral"),
    "Qwen2": (Qwen2Config, GROUPED, "qwen2"),
    "Qwen3": (Qwen3Config, {**GROUPED, "head_dim": 8}, "qwen2"),
    "Gemma 3": (Gemma3TextConfig, {**GROUPED, "head_dim": 8, "query_pre_attn_scalar": 8}, "mistral"),
    "GPT-NeoX": (GPTNeoXConfig, SIZES, "pythia"),
    "Phi": (PhiConfig, SIZES, "phi2"),
}


@dataclass(frozen=True)
class Form:
    """One row of a table.

    Attributes:
        name: what stands in the first column.
        recipe: the shipped recipe whose encoder it is.
        family: the family of the tiny model.
        overrides: changes to the recipe, as on the command line.
        prompt_name: the prompt to export where a template has its instruction after the text.
        context: whether the encoder has a prompt with demonstrations.
    """

    name: str
    recipe: str
    family: str = "Llama"
    overrides: tuple[str, ...] = ()
    prompt_name: str | None = None
    context: bool = False


ONE_TOKEN = ("encoder.memory_tokens=1", "encoder.pooling={mode: last, over: memory}")
FORMS = (
    Form("last token", "baselines/last-token"),
    Form("last token, EOS, prompts", "baselines/repllama-nano"),
    Form("mean, causal", "baselines/mean"),
    Form("mean, bidirectional", "baselines/mean", overrides=("encoder.attention=bidirectional",)),
    Form("mean over the text, bidirectional", "baselines/llm2vec-nano"),
    Form("weighted mean", "baselines/weighted-mean", overrides=("encoder.pooling={mode: weighted_mean, over: all}",)),
    Form("one memory token", "llm2comp/nano", overrides=ONE_TOKEN),
    Form("one memory token, causal", "llm2comp/nano", overrides=(*ONE_TOKEN, "encoder.attention=causal")),
    Form("8 memory tokens, mean", "llm2comp/nano"),
    Form(
        "8 memory tokens, concatenated",
        "llm2comp/nano",
        overrides=("encoder.pooling={mode: concat, over: memory}",),
    ),
    Form("instruction after the text, 8 memory tokens", "baselines/llama2vec-nano", prompt_name="query"),
    Form("soft prompt, EOS", "baselines/soft-prompt-nano"),
    Form("prompt with demonstrations", "epic/nano", context=True),
    Form("PromptEOL", "baselines/prompteol"),
    Form(
        "PromptEOL, words after the text separate",
        "baselines/prompteol",
        overrides=("encoder.words_after=separate", "encoder.preparation=none"),
    ),
    Form("MetaEOL, 8 templates", "baselines/metaeol"),
    Form("Echo", "baselines/echo"),
    Form("latent attention", "baselines/latent-attention-nano"),
    Form("BERT-type, mean", "baselines/all-minilm-l6-v2", family="BERT"),
)
OTHER_FAMILIES = tuple(
    Form(f"{family}, {kind}", "baselines/mean", family, changes)
    for family in FAMILIES
    if family != "Llama"
    for kind, changes in (
        ("last token, causal", ("encoder.pooling={mode: last, over: all}",)),
        ("mean, bidirectional", ("encoder.attention=bidirectional",)),
    )
)


def _tokenizer(name: str) -> Any:
    """Return one of the tokenizers of public models."""
    return AutoTokenizer.from_pretrained(Path(os.environ["EMBREW_TOKENIZERS"]) / name, trust_remote_code=False)


def tokenizer_of(family: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a family: one of `EMBREW_TOKENIZERS`, or for BERT one that adds CLS and SEP."""
    if family != "BERT":
        return _tokenizer(FAMILIES[family][2])
    made = _tokenizer("phi2")
    made.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"})
    specials = [(name, made.convert_tokens_to_ids(name)) for name in ("[CLS]", "[SEP]")]
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A $B:1 [SEP]", special_tokens=specials
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made.backend_tokenizer, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    )


def model_folder(family: str, root: Path) -> Path:
    """Write a tiny random model of a family with its tokenizer, once; return its folder."""
    folder = root / family.replace(" ", "-")
    if folder.exists():
        return folder
    tokenizer = tokenizer_of(family)
    rows = -(-(len(tokenizer) + 8) // 64) * 64
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    torch.manual_seed(0)
    if family == "BERT":
        model = AutoModelForMaskedLM.from_config(BertConfig(**SIZES, vocab_size=rows, pad_token_id=ids["pad_token_id"]))
    else:
        kind, sizes, _ = FAMILIES[family]
        model = AutoModelForCausalLM.from_config(kind(**sizes, vocab_size=rows, **ids))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.15)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def encoder_of(form: Form, root: Path) -> Encoder:
    """Return the encoder of a row, untrained, on a tiny model."""
    changes = [
        f"encoder.model={model_folder(form.family, root)}",
        "encoder.max_length={query: 96, document: 96}",
        "encoder.lora=null",
        "stages=[]",
    ]
    encoder = build.encoder(Recipe.load(form.recipe, [*changes, *form.overrides]), device="cpu").eval()
    if form.context:
        from embrew.model.context_vectors import initialize_demonstrator

        initialize_demonstrator(encoder)
        encoder.add_context("find", Context("Find it: ", (Demonstration("a lake", "Water that stands."),)))
    return encoder


def refusals(form: Form, encoder: Encoder) -> dict[str, str]:
    """Return why each runtime that refuses an encoder does so, by its name."""
    try:
        fixed, _ = fixed_form(encoder, prompt_name=form.prompt_name)
    except ValueError as error:
        return dict.fromkeys(RUNTIMES, str(error))
    found = {}
    for name, runtime in RUNTIMES.items():
        try:
            runtime.check(fixed)
        except ValueError as error:
            found[name] = str(error)
    return found


def outcomes(form: Form, root: Path, *, checks_only: bool) -> dict[str, str]:
    """Return what each runtime did with an encoder: `run`, `simulated`, …, or the reason of its refusal."""
    encoder = encoder_of(form, root)
    found = refusals(form, encoder)
    accepted = [name for name in RUNTIMES if name not in found]
    if checks_only:
        return {**found, **dict.fromkeys(accepted, "accepted")}
    together = exported(form, encoder, accepted)
    for name in accepted:
        reason = None if together is None else exported(form, encoder, [name])
        found[name] = reason or done(name)
    return found


def done(name: str) -> str:
    """Return how a runtime's export was verified: `simulated`; `run`; or `written`, where it is not installed here."""
    if RUNTIMES[name].simulated:
        return "simulated"
    return "written" if name == "llama.cpp" and interpreter() is None else "run"


def exported(form: Form, encoder: Encoder, names: Sequence[str]) -> str | None:
    """Export an encoder for runtimes, verified by each; return the reason if that fails."""
    if not names:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        try:
            export_encoder(encoder, Path(scratch) / "export", runtimes=names, prompt_name=form.prompt_name)
        except (ValueError, RuntimeError, ImportError) as error:
            return str(error)
    return None


def heading(name: str) -> str:
    """Return the heading of a runtime's column: its name and version."""
    python, package = sys.executable, PACKAGES.get(name, name)
    if name == "llama.cpp":
        python = interpreter() or sys.executable
    code = f"from importlib.metadata import version; print(version({package!r}))"
    asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return " ".join([name, RUNTIMES[name].simulated or asked.stdout.strip()]).strip()


def table(forms: Sequence[Form], found: Mapping[Form, Mapping[str, str]]) -> Iterator[str]:
    """Yield the lines of a table, one row per outcome; a refusal is `no`, since `embrew export` prints its reason."""
    yield "| encoder | " + " | ".join(heading(name) for name in RUNTIMES) + " |"
    yield "|---|" + "---|" * len(RUNTIMES)
    rows: dict[tuple[str, ...], list[str]] = {}
    for form in forms:
        cells = tuple(found[form][name] if found[form][name] in OUTCOMES else "no" for name in RUNTIMES)
        rows.setdefault(cells, []).append(form.name)
    for cells, names in rows.items():
        yield f"| {'; '.join(names)} | " + " | ".join(cells) + " |"


def page_with(text: str, lines: Sequence[str]) -> str:
    """Return the page's text with other lines between its markers."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n\n" + "\n".join(lines) + "\n\n" + END + rest.split(END, 1)[1]


def main(*, checks_only: bool) -> None:
    """Make the tables and write them into the page."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        found = {}
        for form in (*FORMS, *OTHER_FAMILIES):
            found[form] = outcomes(form, root, checks_only=checks_only)
            logger.info("%s: %s", form.name, found[form])
        today = date.today().isoformat()
        lines = [
            f"Made by `scripts/runtime_table.py` on {today}, with transformers {version('transformers')}. `run`: the "
            "runtime gave the encoder's vectors. `simulated`: the rules of its loader, read from its source, gave "
            "them. `no`: refused; `embrew export` says why and what to train instead.",
            "",
            "Encoders of shipped recipes, on a tiny Llama with Mistral's tokenizer (BERT-type: a tiny BERT):",
            "",
            *table(FORMS, found),
            "",
            "Other families, each with its own tokenizer (Gemma 3: Mistral's):",
            "",
            *table(OTHER_FAMILIES, found),
        ]
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), lines), encoding="utf-8")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main(checks_only="--checks-only" in sys.argv[1:])
