"""The packages of `embrew[report]`."""

from importlib.util import find_spec

PACKAGES = {"altair": "altair", "jinja2": "jinja2", "vl_convert": "vl-convert-python"}  # distributions by module


def check_packages() -> None:
    """Raise if a package that reports need is not installed, so that nothing is evaluated in vain.

    Raises:
        ImportError: a package is not installed.
    """
    missing = [name for module, name in PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise ImportError(
            f"a report needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed; run "
            "pip install 'embrew[report]'"
        )
