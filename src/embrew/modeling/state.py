"""What a model's outputs depend on, in a form that can be compared: whether it is still the one that it was."""

from __future__ import annotations

from itertools import chain
from typing import Any

from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef


def state_of(model: nn.Module) -> tuple[Any, ...] | None:
    """Equal as long as nobody has written into the model's tensors, replaced or moved them, or switched an adapter.

    A tensor is known by its storage, which a weak reference keeps from being mistaken for a later one at the same
    place, and by torch's count of writes into it. Optimisers, `load_state_dict`, `copy_`, merging and moving all show.
    What does not show is writing through `parameter.data` in place, which torch does not count; assigning a new
    tensor to it does.

    Returns:
        None where that cannot be told: tensors of inference mode have no count, sharded ones no storage of their own.
    """
    found: list[Any] = [model.training]
    for tensor in chain(model.parameters(), model.buffers()):
        if type(tensor.data) is not Tensor or tensor.is_inference():
            return None
        storage = StorageWeakRef(tensor.untyped_storage())
        found.append((storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor._version))
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            scaling = tuple(getattr(module, "scaling", {}).items())
            found.append(
                (module.disable_adapters, tuple(module.active_adapters), tuple(module.merged_adapters), scaling)
            )
    return tuple(found)
