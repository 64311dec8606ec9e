"""What the distillation step does, counted: these gates hold on any machine, however busy.

The setting: V = 32,000, d = 32, ff = 64, 2 layers of 2 heads, 8 memory tokens, LoRA r = 16 on all linear layers but k,
three texts whose context (BOS included) and continuation have 40 + 40, 33 + 47 and 24 + 30 tokens. So padded rows are

    context and memory  3 · (40 + 8)     = 144
    teacher             3 · (40 + 40)    = 240
    student             3 · (1 + 8 + 47) = 168

and Σ (L + 1) = 41 + 48 + 31 = 120 rows are scored.
"""

import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import ctkd
import harness
import work

VOCABULARY, CHUNK = 32_000, 64
LENGTHS = [(40, 40), (33, 47), (24, 30)]
SCORED = 120
HEAD = 2 * 32 * VOCABULARY  # operations to project one row, or to take its gradient back

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")


class VocabularyWide(TorchDispatchMode):
    """Watches tensors whose last axis is the vocabulary: the largest, and how many rows the head made."""

    def __init__(self, heads: list[torch.Tensor]) -> None:
        super().__init__()
        self.heads = {head.untyped_storage().data_ptr() for head in heads}
        self.largest = self.rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if not isinstance(tensor, torch.Tensor) or tensor.ndim < 2 or tensor.shape[-1] != VOCABULARY:
                continue
            if tensor.untyped_storage().data_ptr() in self.heads:  # the weight itself, transposed
                continue
            self.largest = max(self.largest, tensor.numel())
            if func in (torch.ops.aten.mm.default, torch.ops.aten.mm.out):
                self.rows += len(tensor)
        return out


@pytest.fixture(scope="module")
def sides():
    torch.set_num_threads(1)

    def model():
        return ctkd.random_model(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
                bos_token_id=ctkd.BOS,
            )
        )

    return ctkd.build_ours(model()), ctkd.build_peer(model())


@pytest.fixture(scope="module")
def texts():
    return ctkd.random_texts(VOCABULARY, LENGTHS)


class Operations(NamedTuple):
    products: int
    all: int


def operations(side, texts) -> Operations:
    batch = side.batch(texts)
    with FlopCounterMode(display=False) as counter:
        side.step(batch)
    counts = counter.get_flop_counts()["Global"]
    products = counts[torch.ops.aten.mm] + counts.get(torch.ops.aten.addmm, 0)
    return Operations(products, counter.get_total_flops())


def watched(side, texts) -> VocabularyWide:
    batch = side.batch(texts)
    with VocabularyWide([p for p in side.module.parameters() if len(p) == VOCABULARY]) as seen:
        side.step(batch)
    return seen


def test_both_sides_compute_the_same(sides, texts):
    found = ctkd.require_same_step(*sides, texts)
    assert len(found) == 2  # loss, gradients; a difference would have raised


def test_operations(sides, texts):
    """In millions of operations, a product of (n, a) and (a, b) counting 2·n·a·b; torch counts no attention on a CPU.

        a layer's weights  4·32² + 3·32·64 = 10,240; its LoRA 16·(3·64 + 3·96) = 7,680
        encoder            2 layers, forward and back to activations          2·2·10,240·144·2 =  11.8
                           LoRA, forward, back to inputs and weights          3·2· 7,680·144·2 =  13.3
        teacher            2 layers, forward                                    2·10,240·240·2 =   9.8
        student            2 layers, forward and back to activations          2·2·10,240·168·2 =  13.8
        trunk, the same on both sides                                                          =  48.7

        head, ours         teacher, student and gradient of scored rows   2·32·32,000 · 3·120  = 737.3
        head, peer         all rows, and the student's gradient   2·32·32,000 · (144+240+2·168) = 1,474.6

    so that ours ÷ peer is 785.9 ÷ 1,523.2 = 0.52. Beside the products there is one multiplication and addition for each
    scored row and word, the sum in the divergence, should it be computed as a product.
    """
    trunk = 2 * 2 * (10_240 * (2 * 144 + 240 + 2 * 168) + 7_680 * 3 * 144)
    ours, peer = (operations(side, texts) for side in sides)
    assert ours.products == 3 * SCORED * HEAD + trunk
    assert peer.products == (144 + 240 + 2 * 168) * HEAD + trunk
    assert ours.all - ours.products <= 2 * SCORED * VOCABULARY
    assert ours.all <= 0.8 * peer.all


def test_only_scored_rows_reach_the_head(sides, texts):
    ours, peer = (watched(side, texts) for side in sides)
    assert ours.rows == 2 * SCORED
    assert peer.rows == 144 + 240 + 168


def test_logits_never_outgrow_a_chunk(sides, texts):
    ours, peer = (watched(side, texts) for side in sides)
    assert SCORED > CHUNK  # otherwise the test checks nothing
    assert ours.largest <= 2 * CHUNK * VOCABULARY  # the rows of both sides
    assert peer.largest == 240 * VOCABULARY


def test_the_work_of_a_side_is_counted_without_being_told_where_its_layers_are(sides, texts):
    ours, peer = (work.count(partial(side.step, side.batch(texts)), tokens=7) for side in sides)
    assert (ours.passes, ours.positions, ours.head_rows) == (3, 144 + 240 + 168, 2 * SCORED)
    assert (peer.passes, peer.positions, peer.head_rows) == (3, 144 + 240 + 168, 144 + 240 + 168)
    assert [round(1e9 * one.gflop) for one in (ours, peer)] == [operations(side, texts).all for side in sides]
    assert ours.dtype == "float32"
    assert ours.tokens == 7


def test_three_forwards_through_one_trunk(sides, texts):
    ours, _ = sides
    forwards = []
    first = ours.module.encoder.backbone.inner.layers[0]
    handle = first.register_forward_pre_hook(lambda *_: forwards.append(1))
    ours.step(ours.batch(texts))
    handle.remove()
    assert len(forwards) == 3  # encode, teacher, student
    assert sum(p.shape == (VOCABULARY, 32) for p in ours.module.parameters()) == 2  # one embedding matrix, one head


def test_sides_that_differ_give_no_ratio():
    with pytest.raises(harness.Unequal, match=r"losses differ by 1\.00e-03"):
        harness.require_equal("losses", [(1.001, 1.0)], 1e-6)
    with pytest.raises(harness.Unequal):
        harness.require_equal("losses", [(float("nan"), 1.0)], 1e-6)


def test_pairs_that_disagree_are_no_pass():
    bar = harness.Bar(gate=1.1, target=1.2)
    options = {"what": "time", "unit": "s", "ours": 1.0, "peer": 2.0, "bar": bar}
    assert harness.Measure(ratio=2.0, **options).verdict == "pass"
    assert harness.Measure(ratio=1.0, **options).verdict == "miss"
    assert harness.Measure(ratio=2.0, steady=False, **options).verdict == "inconclusive"
