"""Sentence-Transformers: a folder of stock modules, which servers read, too."""

from __future__ import annotations

import json
import re
import tempfile
from importlib.metadata import requires
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from embrew.encoder import Encoder
from embrew.model.pooling import DenseLayers, Projection
from embrew.runtimes.portable import PortableEncoder
from embrew.runtimes.runtime import OpenedModel, Runtime
from embrew.runtimes.stock_folder import pools_every_token, pools_last_token, stock_refusal
from embrew.runtimes.tei import misread_by_tei
from embrew.runtimes.vllm import misread_by_vllm
from embrew.settings.encoder import MODES
from embrew.stock import dense_module, open_stock
from embrew.storage.parts import check_tokenizer, write_tokenizer
from embrew.text_encoder import TextEncoder

SCRIPT = """
sys.modules["bitsandbytes"] = None  # not needed; as it is imported, it may download code
import sentence_transformers
from sentence_transformers import SentenceTransformer
version = sentence_transformers.__version__
model = SentenceTransformer(
    folder, device=options["device"], trust_remote_code=False, model_kwargs={"use_safetensors": True}
)
def encode(case, texts):
    named = {} if case["method"] != "encode" or case.get("default") else {"prompt_name": case["prompt_name"]}
    vectors = getattr(model, case["method"])(texts, batch_size=batch_size, show_progress_bar=False, **named)
    words = [(case["prompt"] or "") + text for text in texts]
    return zip(model.tokenizer(words, truncation=True, max_length=model.max_seq_length)["input_ids"], vectors)
"""


def required_versions() -> dict[str, str]:
    """Return lowest versions that a folder is written for: those that embrew itself needs."""
    matches = (re.match(r"([\w-]+)>=([\d.]+)", line) for line in requires("embrew") or ())
    lowest = {match[1]: match[2] for match in matches if match}
    return {name: lowest[name] for name in ("transformers", "sentence-transformers")}


def write_stock(portable: PortableEncoder, out: Path, weights: str) -> None:
    """Write the folder that plain `SentenceTransformer(folder)` opens, in the encoder's own data type."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer

    encoder, tokenizer = portable.encoder, portable.tokenizer
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:  # on the same disk, and removed with it after a kill
        portable.model.save_pretrained(scratch)
        write_tokenizer(tokenizer, Path(scratch))
        transformer = Transformer(
            scratch,
            unpad_inputs=_unpad(portable),
            model_kwargs={"trust_remote_code": False},
            processor_kwargs={"trust_remote_code": False},
            config_kwargs={"trust_remote_code": False},
        )
        modules: list[nn.Module] = [transformer, *_pooling_modules(encoder, tokenizer, portable.ids)]
        if encoder.normalize:
            modules.append(Normalize())
        stock = SentenceTransformer(
            modules=modules,
            prompts=portable.prompts,
            default_prompt_name=encoder.default_prompt_name or ("text" if "text" in portable.prompts else None),
            similarity_fn_name="cosine",
            device=str(encoder.device),
            trust_remote_code=False,
        )
        stock.save_pretrained(str(out), create_model_card=False)
    check_tokenizer(tokenizer, out)
    _write_for_other_readers(out, max_length=encoder.max_seq_length)
    refuse_misreading(out, vllm=misread_by_vllm(encoder), tei=misread_by_tei(encoder))


def _pooling_modules(encoder: Encoder, tokenizer: PreTrainedTokenizerBase, ids: dict[int, int]) -> list[nn.Module]:
    """Return stock modules that pool as the encoder does, and its layers: they project or keep leading dimensions."""
    from sentence_transformers.sentence_transformer.modules import Pooling, WordWeights

    width, pooling = encoder.backbone.hidden_size, encoder.pooling
    keep = encoder.get_embedding_dimension()
    multiplied = isinstance(encoder.head, Projection) or (
        keep < width and encoder.head is None and encoder.center is None
    )
    if pools_every_token(encoder) or pools_last_token(encoder):
        mode = "lasttoken" if pools_last_token(encoder) else MODES[pooling.mode].stock
        return [
            Pooling(width, mode),
            *([_product(encoder)] if multiplied else []),
            *_dense(encoder, encoder.backbone.dtype),
        ]
    size = len(tokenizer)
    vocabulary = tokenizer.convert_ids_to_tokens(list(range(size)))
    vocabulary = [f"<unused_{i}>" if token is None else token for i, token in enumerate(vocabulary)]
    if pooling.over == "memory":
        memory = [ids[i] for i in encoder.template.memory_ids]
        chosen = range(len(memory)) if pooling.slots is None else pooling.slots
        weights, other = {vocabulary[i]: 1.0 for slot, i in enumerate(memory) if slot in chosen}, 0.0
    else:
        added = encoder.template.first_ids + encoder.template.suffix_ids
        weights, other = {vocabulary[ids.get(i, i)]: 0.0 for i in added}, 1.0
    words = WordWeights(vocabulary, weights, unknown_word_weight=other)
    # of tokens, not of their mean: that one is float32, whatever the model's dtype
    shorter: list[Any] = [_product(encoder, feature="token_embeddings")] if multiplied else []
    if shorter:
        width = shorter[0].out_features
    return [*shorter, words.requires_grad_(False), Pooling(width, "mean"), *_dense(encoder, torch.float32)]


def _dense(encoder: Encoder, dtype: torch.dtype) -> list[nn.Module]:
    """Return stock modules for the layers on the pooled vector; the last one has the leading dimensions only.

    Args:
        encoder: the encoder.
        dtype: dtype of the pooled vector.
    """
    head, keep = encoder.head, encoder.get_embedding_dimension()
    layers: list[tuple[Tensor, Tensor | None, nn.Module]] = []
    if isinstance(head, DenseLayers):
        layers += [(linear.weight, linear.bias, activation) for linear, activation in head.layers]
    if encoder.center is not None:
        layers.append((*encoder.center.as_linear(), nn.Identity()))
    if layers:
        weight, bias, activation = layers[-1]
        layers[-1] = weight[:keep], None if bias is None else bias[:keep], activation
    return [dense_module(weight, bias, activation, dtype) for weight, bias, activation in layers]


def _product(encoder: Encoder, *, feature: str = "sentence_embedding") -> nn.Module:
    """Return a stock module for the leading dimensions of the encoder's projection, or without one of the states.

    Without a projection it is a product with the first columns of the identity, which is exact.

    `truncate_dim` of Sentence-Transformers comes after all modules, so after `Normalize`: its vectors would be short.

    Args:
        encoder: encoder with the projection and the number of dimensions.
        feature: name in Sentence-Transformers of what is multiplied.
    """
    from sentence_transformers.base.modules import Dense

    width, keep = encoder.backbone.hidden_size, encoder.get_embedding_dimension()
    matrix = torch.eye(keep, width, device=encoder.device)
    if isinstance(encoder.head, Projection):
        matrix = encoder.head.weight.detach()[: None if encoder.center else keep].clone()
    dense = Dense(
        width,
        len(matrix),
        bias=False,
        activation_function=nn.Identity(),
        init_weight=matrix.to(encoder.backbone.dtype),
        module_input_name=feature,
    )
    return dense.requires_grad_(False)


def _unpad(portable: PortableEncoder) -> bool | None:
    """Return False where texts must be padded to get their vectors; else None: Sentence-Transformers decides.

    With FlashAttention it concatenates the texts of a batch without padding, which is faster. `WordWeights` needs the
    attention mask that such a batch lacks, and a text without tokens has no row in it.
    """
    one_pooling = pools_every_token(portable.encoder) or pools_last_token(portable.encoder)
    return None if one_pooling and portable.empty_texts else False


def refuse_misreading(out: Path, *, vllm: str | None, tei: str | None) -> None:
    """Make software refuse a folder from which it would read another encoder, with an error that holds the reason.

    transformers 4 would ignore `is_causal`, `rope_parameters` and the tokenizer's class. It reads
    `_attn_implementation_internal` as the name of an attention kernel and repeats an unknown name in its error; version
    5, and servers with their own models, ignore it in a file. vLLM, and llama.cpp's converter, find a model by the
    names in `architectures`. Text Embeddings Inference reads `max_trained_positions` as a number.

    Args:
        out: the folder.
        vllm: why vLLM would read another encoder; None: it would not.
        tei: the same for Text Embeddings Inference.
    """
    path = out / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    lowest = required_versions()["transformers"]
    config["_attn_implementation_internal"] = f"none: this folder needs transformers>={lowest}"
    if vllm:
        config["architectures"] = [f"none: {vllm}"]
    if tei:
        config["max_trained_positions"] = f"none: {tei}"
    path.write_text(json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_for_other_readers(out: Path, *, max_length: int) -> None:
    """Write module paths, pooling flags and the length limit in a form that other and older readers support.

    Text Embeddings Inference requires `max_seq_length`, and the flags of its three kinds of pooling; vLLM reads
    `max_seq_length` and `do_lower_case`. Sentence-Transformers reads the limit from the tokenizer otherwise.
    """
    path = out / "sentence_bert_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "max_seq_length": max_length, "do_lower_case": False}, indent=4))
    path = out / "modules.json"
    modules = json.loads(path.read_text())
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
    path.write_text(json.dumps(modules, indent=2))
    flags = {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
        "pooling_mode_weightedmean_tokens": "weightedmean",
        "pooling_mode_lasttoken": "lasttoken",
    }
    for module in modules:
        if module["type"].endswith(".Pooling"):
            path = out / module["path"] / "config.json"
            config = json.loads(path.read_text())
            by_flag = {name: config.get("pooling_mode") == mode for name, mode in flags.items()}
            path.write_text(json.dumps({**by_flag, **config}, indent=2))


class OpenedFolder(OpenedModel):
    """A folder that plain Sentence-Transformers opens."""

    by_words = True
    reads = ("sentence-transformers", "vllm", "tei")

    def token_ids(self, text: str) -> list[int] | None:
        """Return ids by the model's tokenizer."""
        model: Any = self.model
        limit = model.max_seq_length
        ids = model.tokenizer(text, truncation=limit is not None, max_length=limit)["input_ids"]
        return [int(i) for i in ids]


SENTENCE_TRANSFORMERS = Runtime(
    "sentence-transformers",
    "Sentence-Transformers",
    refusal=stock_refusal,
    script=SCRIPT,
    opening=lambda folder, parity: f'SentenceTransformer("{folder}")',
    write=write_stock,
    reads_stock=True,
    files=("modules.json",),
    open=lambda folder: OpenedFolder(folder, cast(TextEncoder, open_stock(str(folder))), "Sentence-Transformers"),
)
