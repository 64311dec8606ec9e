"""Import packages that extras of embrew install."""

from importlib import import_module
from types import ModuleType


def import_extra(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a module that `pip install embrew` does not install.

    Args:
        module: name of the module.
        extra: extra that installs it.
        purpose: what needs it, the beginning of the message.

    Raises:
        ImportError: it is not installed; names the command that installs it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f'{purpose} needs {error.name}, which is not installed; run: pip install "embrew[{extra}]"'
        ) from error
