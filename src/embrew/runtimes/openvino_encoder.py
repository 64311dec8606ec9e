"""An encoder whose graph OpenVINO computes, converted in memory; texts are read and batched as in `Encoder`.

OpenVINO is imported without its telemetry.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from embrew.encoder import Encoder
from embrew.machine import cores
from embrew.model.attention import Attention
from embrew.model.batching import DEFAULT_COST, Cost
from embrew.model.contexts import PreparedContext
from embrew.model.prefix import PrefixCache, SharedPrefix
from embrew.passport.texts import REFERENCE_TEXTS
from embrew.runtimes.graph import OUTPUT, LabelledGraph, merged_model, write_rows
from embrew.runtimes.reference import check_close
from embrew.settings.base import Base
from embrew.settings.encoder import EncoderSettings
from embrew.storage.saving import tolerance
from embrew.text.tokens import Segment, Tokens
from embrew.text_encoder import TextEncoder, model_hash, tokenizer_sha256

if TYPE_CHECKING:
    from openvino import Model

logger = logging.getLogger(__name__)
EXAMPLE = 2, 6  # rows and tokens of the input that is traced; both are dynamic in the result


def nncf() -> ModuleType:
    """Return the module `nncf`, which quantises models of OpenVINO.

    Raises:
        ValueError: it is not installed; names the extra.
    """
    openvino()  # hides the telemetry of both
    return _imported("nncf", "NNCF")


def openvino() -> ModuleType:
    """Return the module `openvino`.

    Importing it sends a usage event over the network, unless `openvino_telemetry` cannot be imported; so that module is
    hidden from it first, and from NNCF.

    Raises:
        ValueError: it is not installed; names the extra.
    """
    if "openvino_telemetry" not in sys.modules:
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    return _imported("openvino", "OpenVINO")


def _imported(name: str, title: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise ValueError(f'{title} is not installed; install it with: pip install "embrew[openvino]"') from error


def convert(graph: nn.Module, second: str) -> Model:
    """Return an `ov.Model` of a graph, for any number of rows and tokens.

    Args:
        graph: `SentenceGraph` or `LabelledGraph`, whose inputs are `input_ids` and `second`.
        second: name of the second input.
    """
    library = openvino()
    ids = torch.zeros(EXAMPLE, dtype=torch.long)
    labels = torch.full(EXAMPLE, 2)
    labels[1, 4:] = 0
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # the tracer warns of sizes that Python reads, which are constants here
        model = library.convert_model(graph, example_input={"input_ids": ids, second: labels})
    model.outputs[0].get_tensor().set_names({OUTPUT})
    return model


def round_weights(model: Model) -> None:
    """Store the weights of an `ov.Model` as bfloat16, in place; its vectors of constants stay float32."""
    library = openvino()
    opset = library.opset13
    for node in model.get_ordered_ops():
        is_weight = node.get_type_name() == "Constant" and len(node.get_output_shape(0)) >= 2
        if not is_weight or node.get_element_type() != library.Type.f32 or node.data.size < 2:
            continue
        rounded = torch.from_numpy(np.array(node.data)).to(torch.bfloat16).view(torch.int16).numpy()
        tensor = library.Tensor(rounded, library.Shape(rounded.shape), library.Type.bf16)
        weight = opset.convert(library.op.Constant(tensor, shared_memory=False), "f32")
        for target in list(node.output(0).get_target_inputs()):
            target.replace_source_output(weight.output(0))
    model.validate_nodes_and_infer_types()


def is_gated(model: Model) -> bool:
    """Return whether an `ov.Model` has gated feed-forward layers whose weights are not int8.

    In bfloat16 on CPUs with AMX, OpenVINO 2026.4 merges each into one operation that needs two threads; with one, a
    division by zero ends the process (its issue 33300).
    """
    nodes = model.get_ops()
    activations = [node for node in nodes if node.get_type_name() in ("Swish", "Gelu")]
    targets = [target.get_node() for node in activations for target in node.output(0).get_target_inputs()]
    constants = (node.get_element_type() for node in nodes if node.get_type_name() == "Constant")
    quantised = any(element_type.get_type_name() in ("i8", "u8") for element_type in constants)
    return not quantised and any(node.get_type_name() == "Multiply" for node in targets)


class Program:
    """A model of OpenVINO, compiled for the CPU, as a function of tensors.

    It runs as many threads as PyTorch would (`OMP_NUM_THREADS`), and may be called from several threads, one at a time.

    Args:
        model: an `ov.Model`, or the path of its XML file.
        bfloat16: compute in bfloat16 if it can; otherwise in float32.

    Attributes:
        bfloat16: whether it computes in bfloat16.
    """

    def __init__(self, model: Model | Path, *, bfloat16: bool) -> None:
        library = openvino()
        core = library.Core()
        read_model = core.read_model(model) if isinstance(model, Path) else model
        self.bfloat16 = bfloat16 and not (is_gated(read_model) and min(torch.get_num_threads(), cores()) == 1)
        if bfloat16 and not self.bfloat16:
            logger.warning(
                "OpenVINO computes in float32, since it fails on this model in bfloat16 with a single thread; set "
                "OMP_NUM_THREADS=2, where there are cores"
            )
        options = {
            "INFERENCE_PRECISION_HINT": "bf16" if self.bfloat16 else "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
        }
        self.compiled = core.compile_model(read_model, "CPU", options)
        self.dimensions = int(self.compiled.output(0).get_partial_shape()[1].get_length())
        self._request = self.compiled.create_infer_request()
        self._lock = threading.Lock()

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return the output for inputs in their order, float32 `(rows, dimensions)`."""
        with self._lock:
            outputs = self._request.infer([tensor.numpy() for tensor in inputs], share_inputs=True)
            return torch.from_numpy(np.array(outputs[self.compiled.output(0)], dtype=np.float32))


@dataclass
class Shape:
    """What the text side of an encoder reads of its model, where the model itself is a compiled graph.

    Attributes: as of `Backbone`.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    max_positions: float
    is_bert_type: bool
    memory_ids: list[int]
    soft_prompt_ids: list[int]
    prefix_cache: PrefixCache | None = None

    @property
    def device(self) -> torch.device:
        """Always the CPU."""
        return torch.device("cpu")

    def check_attention(self, attention: Attention) -> None:
        """Nothing to do: the attention is part of the graph."""

    def check_row_length(self, longest: float, what: str, advice: str) -> None:
        """Raise where the longest row that settings allow has more tokens than there are positions."""
        if longest > self.max_positions:
            raise ValueError(f"{what}, and this model has positions for {self.max_positions:g} tokens; {advice}")


SHAPE_FIELDS = tuple(field.name for field in fields(Shape) if field.name != "prefix_cache")
"""Fields of `Shape` that are stored in an export."""


@dataclass(frozen=True)
class Origin:
    """The encoder that a graph was made of, for results and for comparing vectors on disk.

    Attributes:
        described: what its `describe()` returns.
        weights_hash: what its `weights_hash()` returns.
        tokenizer_hash: SHA-256 of its tokenizer.
        weights: type of the weights in the graph: `fp32`, `bf16`, `int8`.
    """

    described: Mapping[str, Any]
    weights_hash: str
    tokenizer_hash: str | None
    weights: str = "fp32"


class OpenVINOEncoder(Encoder):
    """An encoder whose pooled vectors a compiled graph computes: `encode` and all public methods as of `Encoder`.

    Args:
        program: compiled graph.
        shape: shape of the graph's model.
        tokenizer: tokenizer that gives the ids that the graph takes.
        settings: settings of the encoder.
        origin: encoder that the graph was made of.
        contexts: contexts by name; their vectors are rows of the graph's embedding matrix.
        labelled: whether the graph takes labels of tokens (`LabelledGraph`), or an attention mask (`SentenceGraph`).
    """

    def __init__(
        self,
        program: Program,
        shape: Shape,
        tokenizer: PreTrainedTokenizerBase,
        settings: EncoderSettings,
        origin: Origin,
        *,
        contexts: Mapping[str, PreparedContext] | None = None,
        labelled: bool = False,
    ) -> None:
        self._dimensions = program.dimensions
        pooling = replace(
            settings.pooling.uncentered, latents=None, heads=None, head_width=None, projection=None, dense=None
        )
        text_settings = settings.replace(demonstrations=None, pooling=pooling)  # trained parts are in the graph
        super().__init__(shape, tokenizer, Base.from_dict(origin.described["base"]), text_settings)  # type: ignore[arg-type]
        self.program, self.origin, self.labelled, self.in_bfloat16 = program, origin, labelled, program.bfloat16
        self.normalizes = settings.normalize and not labelled
        self.contexts = dict(contexts or {})
        self.tokenizer_hash = origin.tokenizer_hash
        self.eval()

    @property
    def cost(self) -> Cost:
        """What a forward pass takes; the graph's layers are not looked at."""
        return DEFAULT_COST

    @property
    def pooled_dimensions(self) -> int:
        """Dimensions of the graph's vectors."""
        return self._dimensions

    @property
    def shares_prefixes(self) -> bool:
        """Never: a graph reads whole rows."""
        return False

    @contextmanager
    def fixed(self) -> Iterator[PrefixCache]:
        """Return an empty store: a graph does not change, and keeps no prefixes."""
        yield PrefixCache()

    def forward(self, tokens: Tokens, *, num_layers: int | None = None, shared: SharedPrefix | None = None) -> Tensor:
        """Return the graph's vectors, float32 `(batch, dimensions)`.

        Raises:
            ValueError: fewer layers are asked for, or vectors that are not normalised, and they are in the graph; or
                pooling is over the text, and there is a prompt.
        """
        if num_layers is not None and num_layers != self.backbone.num_layers:
            raise ValueError(
                f"num_layers={num_layers}: OpenVINO runs all {self.backbone.num_layers} layers of a converted model; "
                "export the model with --layers, or use --backend torch"
            )
        if self.normalizes and not self.normalize:
            raise ValueError("normalize=False: normalisation is a part of the exported graph; use --backend torch")
        labels = tokens.segment_ids if self.labelled else self._attention_mask(tokens)
        return self.program(tokens.input_ids, labels)

    def _attention_mask(self, tokens: Tokens) -> Tensor:
        """Return the attention mask of rows for a graph that labels their tokens itself.

        Pooling over the text, it takes all tokens for the text but those that the template adds to every one. A row
        that has no text is given as padding, whose vector is zero.
        """
        mask = tokens.attention_mask
        if self.pooling.over != "text":
            return mask
        text = tokens.where(Segment.TEXT).sum(-1)
        added = len(self.template.first_ids) + len(self.template.suffix_ids)
        if ((text > 0) & (text != mask.sum(-1) - added)).any():
            raise ValueError(
                "the exported graph pools over the text and cannot tell a prompt from it; encode without a prompt, or "
                "use the encoder that was exported"
            )
        return mask * (text > 0)[:, None]

    def describe(self) -> dict[str, Any]:
        """Return what the original encoder describes, with the runtime and the type of the weights in the graph."""
        return {
            **self.origin.described,
            "prompts": self.prompts,
            "max_length": self.max_length,
            "dimensions": self.get_embedding_dimension(),
            "backend": "openvino",
            "weights": self.origin.weights,
            "dtype": "bfloat16" if self.in_bfloat16 else "float32",
        }

    def weights_hash(self) -> str:
        """Return the original encoder's hash if all is float32, since vectors are then equal; otherwise another one."""
        if self.origin.weights == "fp32" and not self.in_bfloat16:
            return self.origin.weights_hash
        weights = "bf16" if self.origin.weights == "fp32" else self.origin.weights
        return hashlib.sha256(json.dumps([self.origin.weights_hash, "openvino", weights]).encode()).hexdigest()


def in_vocabulary(context: PreparedContext, ids: list[int]) -> PreparedContext:
    """Return a context whose vectors are rows of the vocabulary, by these ids: one per position of its row."""
    segments = [int(Segment.PROMPT) if label == Segment.SOFT else label for label in context.row.segments]
    return PreparedContext(context.context, type(context.row)(ids, segments), torch.zeros(0, 0))


def convert_encoder(encoder: Encoder, *, bfloat16: bool, origin: TextEncoder | None = None) -> OpenVINOEncoder:
    """Return an encoder that OpenVINO computes, after a comparison of both on a few texts.

    Args:
        encoder: encoder to convert; it is not changed.
        bfloat16: compute in bfloat16.
        origin: model that `encoder` was read from, if it is of another class; it is the one that is compared.

    Raises:
        ValueError: the vectors are others.
    """
    backbone = encoder.backbone
    learned = [*backbone.memory_ids, *backbone.soft_prompt_ids]
    next_id = backbone.vocab_size + len(learned)
    contexts: dict[str, PreparedContext] = {}
    rows: dict[int, torch.Tensor] = {}
    for name, context in encoder.contexts.items():
        pairs = zip(context.row.ids, context.row.segments, strict=True)
        contexts[name] = in_vocabulary(context, [i + next_id if segment == Segment.SOFT else i for i, segment in pairs])
        rows.update(enumerate(context.vectors, start=next_id))
        next_id += len(context.vectors)
    model = merged_model(encoder, {i: i for i in learned}, next_id)
    write_rows(model, rows)
    program = Program(convert(LabelledGraph(encoder, model), "segment_ids"), bfloat16=bfloat16)
    original = origin or encoder
    converted = OpenVINOEncoder(
        program,
        Shape(**{name: getattr(backbone, name) for name in SHAPE_FIELDS}),
        encoder.tokenizer,
        encoder.settings,
        Origin(encoder.describe(), model_hash(original), tokenizer_sha256(original)),
        contexts=contexts,
        labelled=True,
    )
    converted.truncate_dim = encoder.truncate_dim
    compare(converted, original)
    return converted


def compare(converted: OpenVINOEncoder, encoder: TextEncoder) -> None:
    """Encode a few texts with both, as queries and as documents.

    Raises:
        ValueError: the largest difference, or the smallest cosine in bfloat16, is not allowed.
    """
    texts = [*REFERENCE_TEXTS, " ".join(REFERENCE_TEXTS)]
    for method in ("encode_query", "encode_document"):
        vectors, expected = (
            torch.from_numpy(np.array(getattr(model, method)(texts, show_progress_bar=False))).float()
            for model in (converted, encoder)
        )
        allowed = None if converted.in_bfloat16 else tolerance(torch.float32, converted.backbone.num_layers)
        check_close(vectors, expected, allowed, what=f"OpenVINO ({method})")
