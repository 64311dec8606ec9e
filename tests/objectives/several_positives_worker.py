"""The losses of `test_several_positives` in two processes, the even rows in one; -m ... OUT in both."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from torch import distributed

from embrew.distributed import sum_over_processes
from embrew.methods import Angle, Contrastive
from tests.objectives.test_several_positives import SCORED, TAU, batch_of, pairs, scored_batch, vectors


def main(out: str) -> None:
    """Write the mean of each loss over the processes."""
    distributed.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    with tempfile.TemporaryDirectory() as folder:
        rows = pairs(Path(folder))
    batch = batch_of(rows)
    own = [i for i in range(len(rows)) if i % 2 == rank]
    documents = [j for j, owner in enumerate(batch["query_indices"].tolist()) if owner in own]
    given = {"query": vectors(len(rows), 0)[own], "document": vectors(len(batch["query_indices"]), 1)[documents]}
    first, second = SCORED[:2], SCORED[2:]
    texts = vectors(2 * len(SCORED), 2).view(2, len(SCORED), -1)[:, slice(0, 2) if rank == 0 else slice(2, None)]
    losses = {
        "contrastive": Contrastive(temperature=TAU).loss(given, batch_of([rows[i] for i in own])),
        "symmetric": Contrastive(temperature=TAU, symmetric=True).loss(given, batch_of([rows[i] for i in own])),
        "angle": Angle(
            rows="pairs", temperature=TAU, cosine_weight=0, angle_weight=0
        ).loss(given, batch_of([rows[i] for i in own])),
        "scored": Angle(temperature=TAU, cosine_weight=0, angle_weight=0).loss(
            {"text": texts.flatten(0, 1)}, scored_batch(first if rank == 0 else second)
        ),
    }  # fmt: skip
    means = {name: float(sum_over_processes(parts["loss"].detach())) / 2 for name, parts in losses.items()}
    if rank == 0:
        Path(out).write_text(json.dumps(means))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
