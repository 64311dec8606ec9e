"""Probes of the machine without torch: system, CPU, memory, environment variables."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from embrew.doctor.finding import Finding
from embrew.free_memory import total_and_free
from embrew.threads import cores

LITTLE = 2e9  # bytes of free memory below which a warning is given
SHOWN = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "MKL_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
)


def system() -> Finding:
    """Report operating system, kernel and architecture."""
    value = f"{platform.system()} {platform.release()}, {platform.machine()}"
    libc = " ".join(part for part in platform.libc_ver() if part)
    if sys.platform != "linux":
        return Finding("system", "warning", value, "embrew is tested on Linux", {"libc": libc})
    return Finding("system", "ok", value, details={"libc": libc})


def cpu() -> Iterator[Finding]:
    """Report the CPU's name, the number of cores that this process may use, and their load."""
    usable, there = cores(), os.cpu_count() or 1
    value = f"{cpu_name()}, {usable} of {there} cores usable" if usable < there else f"{cpu_name()}, {there} cores"
    yield Finding("cpu", "ok", value, details={"cores": there, "usable": usable})
    load = os.getloadavg()[0]
    advice = "other processes use the CPU; measured times are too long" if load > 1.5 * usable else ""
    yield Finding("load", "warning" if advice else "ok", f"{load:.1f} on {usable} cores", advice)


def cpu_name() -> str:
    """Return the CPU's name."""
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout.strip()
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.lower().startswith(("model name", "hardware")))
    return next(named, "") or platform.processor() or platform.machine()


def memory() -> Finding:
    """Report total and free memory."""
    total, free = total_and_free()
    details = {"total": total, "free": free}
    if free is None:
        return Finding("memory", "ok", f"{total / 1e9:.1f} GB", details=details)
    value = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"
    if free < LITTLE:
        return Finding("memory", "warning", value, "end other programs, or choose a smaller model or batch", details)
    return Finding("memory", "ok", value, details=details)


def environment() -> Iterator[Finding]:
    """Report variables that change what embrew does. Of a token, only its presence is shown."""
    from huggingface_hub import get_token

    known = {name: os.environ[name] for name in SHOWN if name in os.environ}
    listed = ", ".join(f"{name}={value}" for name, value in known.items()) or "nothing is set"
    yield Finding("environment", "ok", listed, details=known)
    yield Finding("Hugging Face token", "ok", "yes" if get_token() else "no")
    for name in ("EMBREW_DATA", "EMBREW_TOKENIZERS"):
        place = os.environ.get(name)
        if place is not None and not Path(place).is_dir():
            advice = f"set {name} to a folder that exists, or remove the variable"
            yield Finding(name, "warning", f"{place}, which is no folder", advice)
        else:
            yield Finding(name, "ok", place or "not set")
