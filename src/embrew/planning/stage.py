"""What a stage takes: memory of each device, operations, time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from datasets import Dataset

from embrew.data.mixing import MixedOrder
from embrew.modeling.encoder import Encoder
from embrew.modeling.model.quantized import quantized_layers
from embrew.objectives import Objective
from embrew.planning.devices import CONTEXT, Device
from embrew.planning.memory import Memory, Static
from embrew.planning.run import StageRun
from embrew.planning.taken import KERNELS
from embrew.shaped import counting
from embrew.training.gradcache import Chunks
from embrew.training.largest_batch import largest_batch
from embrew.training.step_cost import How, StepCost, step_cost, without_values

AUTO = "auto"  # of activation_checkpointing: where activations do not fit
UTILIZATION = 0.4  # of a device's arithmetic, where none is given
SAMPLED = 256  # rows of a batch that are counted, of a device; what more of them take is on a line


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """A stage on one or several devices.

    Attributes:
        run: its batch, steps and arithmetic.
        static: its parameters.
        memory: of each device.
        free: bytes of a device.
        saved: bytes that a token keeps in a layer for the backward pass, on average.
        most: largest micro-batch, or chunk of gradient caching, that fits, in rows (or tokens of a chunk); 0: none;
            None: not looked for.
        tokens: of an optimiser step, all devices together, padding included.
        measured: whether lengths are those of the stage's data; else, all texts are as long as the limits allow.
        flop: floating-point operations of an optimiser step, all devices together.
        seconds: of an optimiser step.
    """

    run: StageRun
    static: Static
    memory: Memory
    free: int
    saved: float
    most: int | None
    tokens: int
    measured: bool
    flop: float
    seconds: float

    @property
    def fits(self) -> bool:
        """Whether the fullest moment of a step is within a device's memory."""
        return self.memory.peak <= self.free

    @property
    def hours(self) -> float | None:
        """Of the whole stage; None: the number of steps is unknown."""
        return None if self.run.steps is None else self.run.steps * self.seconds / 3600

    @property
    def disk(self) -> int:
        """Bytes of two checkpoints of the stage and of its folder: trained weights, and moments in checkpoints."""
        return int((2 * (4 + self.run.moments) + 4) * self.static.trained)


class Stage:
    """A stage that is planned: an encoder, with or without values, rows and settings.

    Args:
        encoder: prepared for the stage.
        objective: of the stage.
        rows: of its data, or as long as the limits allow.
        order: of the rows.
        run: batch, steps and arithmetic.
        device: each of the devices.
        taken: bytes of a device that are used before there is a weight; None: by CUDA.
        spared: bytes that quantised weights take less than those of the encoder.
        widest: bytes of the largest weight that is dequantised for a product.
        sharded: whether weights are sharded (FSDP2); None: where whole ones do not fit several devices.
        sampled: number of rows that are counted.
    """

    def __init__(
        self,
        encoder: Encoder,
        objective: Objective,
        rows: Dataset,
        order: MixedOrder | None,
        run: StageRun,
        device: Device,
        *,
        taken: int | None = None,
        spared: int = 0,
        widest: int = 0,
        sharded: bool | None = None,
        sampled: int = SAMPLED,
    ) -> None:
        self.encoder, self.objective, self.run, self.device = encoder, objective, run, device
        self.taken = (CONTEXT if taken is None else taken) + widest
        if device.kind == "cpu" and run.autocast is not None:
            self.taken += KERNELS
        if run.processes == 1 or spared or quantized_layers(encoder.backbone):  # FSDP2 does not shard 4-bit weights
            sharded = False
        self.sharded = sharded
        found = largest_batch(rows, run.rows, max_length=max(encoder.max_length.values()), order=order, seed=run.seed)
        self.mean = found.mean
        self.batch = self._precomputed(_evenly(found.rows, sampled) if run.chunks is None else found.rows)
        self.static = Static.of(
            encoder, objective, spared=spared, itemsize=None if run.autocast is None else run.autocast.itemsize
        )
        auto = run.recompute == AUTO
        if auto:
            self.run = replace(run, recompute=False)
        self._count()
        if auto and self._memory(self._of_rows(run.rows)).peak > device.memory:
            self.run = replace(run, recompute=True)
            self._count()

    def plan(self, *, utilization: float, measured: bool, search: bool = True) -> StagePlan:
        """Return the plan; without `search`, the largest micro-batch is not looked for."""
        run, cost = self.run, self._of_rows(self.run.rows)
        memory = self._memory(cost)
        batches = run.accumulation * run.processes
        return StagePlan(
            run=run,
            static=self.static,
            memory=memory,
            free=self.device.memory,
            saved=cost.layer / max(cost.positions, 1),
            most=self._most() if search else None,
            tokens=int(cost.tokens * self.mean * batches),
            measured=measured,
            flop=cost.flop * self.mean * batches,
            seconds=cost.flop * self.mean * run.accumulation / (self.device.speed(run.arithmetic) * utilization),
        )

    def _memory(self, cost: StepCost) -> Memory:
        """Return the memory, sharded or not as the run is; if that is open, sharded where whole weights do not fit."""

        def of(sharded: bool) -> Memory:
            return Memory.of(
                self.static,
                cost,
                taken=self.taken,
                moments=self.run.moments,
                accumulates=self.run.accumulation > 1,
                processes=self.run.processes,
                sharded=sharded,
            )

        if self.sharded is not None:
            return of(self.sharded)
        plain = of(False)
        return plain if plain.peak <= self.device.memory else of(True)

    def _count(self) -> None:
        """Count a step of the sampled rows; of fewer, where the micro-batch has more rows."""
        self.counted = self._cost(self.batch, self.run.chunks)
        self.fewer = self._fewer() if self.run.rows > len(self.batch) else None

    def _of_rows(self, rows: int) -> StepCost:
        """Return the cost of a micro-batch of the stage's size, of which some rows were counted."""
        if self.fewer is None:
            return self.counted
        size, fewer = len(self.batch), len(self.batch) // 2
        return self.fewer.scaled((rows - fewer) / (size - fewer), self.counted)

    def _fewer(self) -> StepCost:
        """Return the cost of half of the rows that were counted; of two, if there is one."""
        count = len(self.batch)
        return self._cost(self.batch[::2] if count > 1 else self.batch * 2, None)

    def _most(self) -> int:
        """Return the largest micro-batch, or chunk, that fits: memory is taken to grow with it on a line."""
        chunks, size = self.run.chunks, len(self.batch)
        if chunks is None:
            other, other_size = self.fewer or self._fewer(), -(-size // 2) if size > 1 else 2
        else:
            size = chunks.rows or chunks.tokens or 1
            other_size = max(1, size // 2)
            half = Chunks(rows=chunks.rows and other_size, tokens=chunks.tokens and other_size)
            other = self._cost(self.batch, half)
        one, two = self._memory(self.counted).peak, self._memory(other).peak
        slope = (one - two) / (size - other_size) if size != other_size else 0
        if slope <= 0:
            return size if one <= self.device.memory else 0
        return max(0, int(size + (self.device.memory - one) / slope))

    def _cost(self, rows: list[dict[str, Any]], chunks: Chunks | None) -> StepCost:
        how = How(kind=self.device.kind, autocast=self.run.autocast, recompute=bool(self.run.recompute), chunks=chunks)
        batch = self.objective.collate(rows, self.encoder, seed=self.run.seed)
        return step_cost(self.encoder, self.objective, batch, how)

    def _precomputed(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return rows with the columns that the objective computes at the start of a stage, without values."""
        if "reference_key" in rows[0]:
            return rows
        encoder = without_values(self.encoder, 1)
        with counting(self.device.kind), torch.no_grad():
            return list(self.objective.precompute(Dataset.from_list(rows), encoder, None).to_list())


def _evenly(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return at most `count` rows, evenly spaced."""
    return rows if len(rows) <= count else [rows[i * len(rows) // count] for i in range(count)]
