"""Several processes that compute one loss: world size, sums, and a gather that carries gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, distributed

from embrew.files.writing import claimed

Decision = TypeVar("Decision")


def world_size() -> int:
    """Return the number of processes that train together."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process."""
    return distributed.get_rank() if world_size() > 1 else 0


def wait() -> None:
    """Wait until all processes are here."""
    if world_size() > 1:
        distributed.barrier()


def from_main_process(decide: Callable[[], Decision]) -> Decision:
    """Run a function in the main process and return its result in all; where it raises a user's error, all raise it.

    Raises:
        ValueError, TypeError, OSError: the main process raised it.
    """
    if world_size() == 1:
        return decide()
    shared: list[Any] = [None, None]  # decision, error
    own_error: Exception | None = None
    if rank() == 0:
        try:
            shared[0] = decide()
        except (ValueError, TypeError, OSError) as error:
            own_error = error
            shared[1] = error if type(error).__module__ == "builtins" else ValueError(str(error))
    distributed.broadcast_object_list(shared, src=0)
    if own_error is not None or shared[1] is not None:
        raise own_error or shared[1]
    return shared[0]


@contextmanager
def locked_by_main_process(folder: Path, doing: str) -> Iterator[None]:
    """Lock a folder as `files.writing.claimed` does, in the main process for all that train together."""
    with ExitStack() as stack:
        from_main_process(lambda: stack.enter_context(claimed(folder, doing)))
        yield


class GlobalRows(NamedTuple):
    """Position of the rows of this process among the rows of all processes.

    Attributes:
        offset: index of this process' first row.
        total: number of rows of all processes.
    """

    offset: int
    total: int


def global_rows(count: int, device: torch.device) -> GlobalRows:
    """Return the position of `count` rows of this process among the rows of all processes, in rank order."""
    if world_size() == 1:
        return GlobalRows(0, count)
    sizes = torch.zeros(world_size(), dtype=torch.long, device=device)
    sizes[rank()] = count
    sizes = sum_over_processes(sizes)
    return GlobalRows(int(sizes[: rank()].sum()), int(sizes.sum()))


def share_of_rows(rows: int, device: torch.device) -> float:
    """Return the factor of a mean over this process' rows with which the mean over processes is that of all rows.

    1 for one process, or if all processes have the same number of rows.
    """
    if world_size() == 1:
        return 1.0
    total = sum_over_processes(torch.tensor(float(rows), device=device))
    return rows * world_size() / float(total)


def sum_over_processes(value: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes, without gradient."""
    if world_size() == 1:
        return value
    total = value.detach().clone()
    distributed.all_reduce(total)
    return total


def max_over_processes(count: int, device: torch.device) -> int:
    """Return the maximum of a count over all processes."""
    if world_size() == 1:
        return count
    maximum = torch.tensor(count, device=device)
    distributed.all_reduce(maximum, distributed.ReduceOp.MAX)
    return int(maximum)


def mean_of_figures(figures: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean of each named list of numbers over all processes; a process may lack a name, or its values."""
    local_sums = {name: (sum(values), len(values)) for name, values in figures.items() if len(values)}
    by_rank: list[dict[str, tuple[float, int]]] = [local_sums]
    if world_size() > 1:
        by_rank = [{} for _ in range(world_size())]
        distributed.all_gather_object(by_rank, local_sums)
    means = {}
    for name in dict.fromkeys(name for by_name in by_rank for name in by_name):
        sums, counts = zip(*(by_name[name] for by_name in by_rank if name in by_name), strict=True)
        means[name] = sum(sums) / sum(counts)
    return means


def mean_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace every gradient by its mean over all processes, as data-parallel training does; none counts as 0."""
    if world_size() == 1:
        return
    averaged = list(parameters)
    for parameter in averaged:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    grads = [parameter.grad for parameter in averaged if parameter.grad is not None]
    for dtype in dict.fromkeys(grad.dtype for grad in grads):
        same_dtype = [grad for grad in grads if grad.dtype == dtype]
        flat = torch.cat([grad.flatten() for grad in same_dtype])
        distributed.all_reduce(flat)
        for grad, mean in zip(
            same_dtype, (flat / world_size()).split([grad.numel() for grad in same_dtype]), strict=True
        ):
            grad.copy_(mean.view_as(grad))


def gather(rows: Tensor) -> Tensor:
    """Return the rows of all processes, in rank order, `(sum of n, ...)`; their numbers of rows may differ.

    The gradient of a process' rows is the sum of the gradients of all processes. Data-parallel training averages the
    processes' gradients. The result is the gradient of one process with the global batch, if the loss of that batch is
    the mean of the processes' losses. A loss that is a mean over a process' own rows must therefore be multiplied with
    `share_of_rows`; a loss of all gathered rows, which every process computes identically, needs no factor.
    """
    if world_size() == 1:
        return rows
    return _Gather.apply(rows)


def gather_lists(lists: Sequence[Sequence[int]], device: torch.device) -> list[list[int]]:
    """Return the lists of all processes, of non-negative integers, in rank order."""
    if world_size() == 1:
        return [list(values) for values in lists]
    width = max_over_processes(max(map(len, lists), default=0), device)
    rows = [[*values, *[-1] * (width - len(values))] for values in lists]
    padded = torch.tensor(rows, dtype=torch.long, device=device)
    return [[i for i in row if i >= 0] for row in gather(padded.view(len(lists), width)).tolist()]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        sizes = [torch.zeros(1, dtype=torch.long, device=rows.device) for _ in range(world_size())]
        distributed.all_gather(sizes, torch.tensor([len(rows)], device=rows.device))
        counts = [int(size) for size in sizes]
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        distributed.all_gather(parts, padded)
        ctx.start, ctx.count = sum(counts[: rank()]), len(rows)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        distributed.all_reduce(total)
        return total[ctx.start : ctx.start + ctx.count]
