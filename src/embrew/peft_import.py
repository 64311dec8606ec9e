"""Import peft without bitsandbytes, which peft would import wherever it is installed.

That import takes a second of CPU time. On a CPU with AVX512-BF16, bitsandbytes also prints a warning, or downloads
native code from the Hub if the package `kernels` is installed. After `defer_bitsandbytes`, peft uses bitsandbytes only
once another module has imported it, as every model with 4-bit layers does.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

LIBRARY = "bitsandbytes"


def defer_bitsandbytes() -> None:
    """Let later imports of peft, by whatever module, leave bitsandbytes alone. Has no effect after peft is imported."""
    if "peft" not in sys.modules:
        sys.meta_path.insert(0, _PeftFinder())


class _PeftFinder:
    """Finds peft where it is, and replaces how its package is executed."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == "peft" else None
        if spec is not None and spec.loader is not None:
            setattr(spec.loader, "exec_module", partial(_execute, spec.loader.exec_module))  # noqa: B010
        return spec


def _execute(execute: Any, peft: ModuleType) -> None:
    names: Any = import_module("peft.import_utils")  # before peft's other modules copy the two functions
    names.is_bnb_available = names.is_bnb_4bit_available = _is_imported
    modules: dict[str, Any] = sys.modules
    modules.setdefault(LIBRARY, None)  # an import of it fails as if it were not installed
    try:
        execute(peft)
    finally:
        if modules[LIBRARY] is None:
            del modules[LIBRARY]


def _is_imported() -> bool:
    return sys.modules.get(LIBRARY) is not None
