"""Probes of packages: versions against the floors of embrew's metadata, and optional extras."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement

from embrew.doctor.finding import Finding


def python() -> Finding:
    """Report the Python version."""
    details = {"implementation": platform.python_implementation(), "executable": sys.executable}
    return Finding("python", "ok", platform.python_version(), details=details)


def packages() -> Iterator[Finding]:
    """Report the installed versions of embrew and of each required package."""
    try:
        own = metadata.distribution("embrew")
    except metadata.PackageNotFoundError:
        yield Finding(
            "embrew",
            "failed",
            "the source is there, the package is not installed",
            "install it: pip install embrew, or pip install -e . in a checkout",
        )
        return
    yield Finding("embrew", "ok", own.version)
    for requirement in map(Requirement, own.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield needed(requirement)


def needed(requirement: Requirement) -> Finding:
    """Return the finding of one required package."""
    wanted = f"{requirement.name}{requirement.specifier}"
    try:
        found = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return Finding(requirement.name, "failed", "not installed", f"pip install '{wanted}'", {"needs": wanted})
    fits = requirement.specifier.contains(found, prereleases=True)
    if not fits:
        advice = f"pip install --upgrade '{wanted}'"
        return Finding(requirement.name, "failed", f"{found}; embrew needs {wanted}", advice, {"needs": wanted})
    return Finding(requirement.name, "ok", found, details={"needs": wanted})


def extras() -> Iterator[Finding]:
    """Report each optional extra as complete, incomplete or not installed. None is required."""
    own = metadata.distribution("embrew")
    requirements = [Requirement(one) for one in own.requires or ()]
    for extra in own.metadata.get_all("Provides-Extra") or ():
        if extra in ("dev", "docs"):
            continue
        wanted = [one for one in requirements if one.marker is not None and one.marker.evaluate({"extra": extra})]
        found = [needed(one) for one in wanted if not one.marker.evaluate({"extra": ""})]  # type: ignore[union-attr]
        there = [one for one in found if one.value != "not installed"]
        old = [one for one in there if one.status != "ok"]
        details = {one.name: one.value for one in found}
        if old:
            value = ", ".join(f"{one.name} {one.value}" for one in old)
            yield Finding(f"extra {extra}", "warning", value, f"pip install --upgrade 'embrew[{extra}]'", details)
        elif len(there) == len(found):
            value = ", ".join(f"{one.name} {one.value}" for one in found)
            yield Finding(f"extra {extra}", "ok", f"installed ({value})", details=details)
        else:
            yield Finding(f"extra {extra}", "ok", "not installed", details=details)
