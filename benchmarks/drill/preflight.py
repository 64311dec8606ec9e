"""What a machine has of what the drill needs, before anything is measured. Imports nothing that may be missing."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from drill.record import TOP

PYTHON = (3, 11)
NOT_NEEDED = ("faiss-cpu", "httpx2", "matplotlib")  # of the dependencies, by the drill
USEFUL = ("triton", "flash-attn", "bitsandbytes", "pytest")
MODULES = {"flash-attn": "flash_attn"}
DISK = 12e9  # bytes: a model of Qwen3-0.6B's shape, and trained copies in float32
PATIENCE = 300  # seconds that torch may take to begin
PROBE = """
import json, sys, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "available": torch.cuda.is_available()}
if found["available"]:
    free, total = torch.cuda.mem_get_info()
    ones = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
    about = torch.cuda.get_device_properties(0)
    found |= {"gpu": about.name, "compute": f"{about.major}.{about.minor}", "count": torch.cuda.device_count(),
              "free_gb": free / 2**30, "total_gb": total / 2**30, "computes": float((ones @ ones).sum()) == 64.0**3}
print(json.dumps(found))
"""
IMPORTED = ("embrew.training.stages", "sentence_transformers", "pytest", "scipy")  # by items, with what these import


def examine(work: Path) -> dict[str, Any]:
    """Return what this machine has, and what is missing.

    `missing`: sentences, each of which stops the drill. `warnings`: what some items do without. `pretended`: there is
    no GPU.
    """
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "glibc": platform.libc_ver()[1],
        "driver": driver(),
        "installed": installed(),
    }
    missing = [] if sys.version_info >= PYTHON else [f"Python {platform.python_version()}; embrew needs 3.11 or newer"]
    for name, floor in requirements():
        if name not in NOT_NEEDED:
            missing += lacking(name, floor, found["installed"])
    probed = probe() if "torch" in found["installed"] else {}
    found |= probed
    missing += gpu_problems(found) if probed else []
    missing += [] if missing else import_problems()
    free = shutil.disk_usage(existing(work)).free
    if free < DISK:
        missing.append(f"{free / 1e9:.0f} GB of disk are free for {work}; the drill needs {DISK / 1e9:.0f}")
    found |= {"missing": missing, "warnings": warnings(), "pretended": not found.get("available", False)}
    return found


def requirements() -> list[tuple[str, tuple[int, ...]]]:
    """Return name and smallest version of each dependency in pyproject.toml."""
    lines = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["dependencies"]
    floors = [re.search(r">=([\d.]+)", line) for line in lines]
    return [
        (re.split(r"[^A-Za-z0-9_.-]", line)[0].lower(), numbers(floor[1] if floor else "0"))
        for line, floor in zip(lines, floors, strict=True)
    ]


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: 2.11.0+cu130 is (2, 11, 0)."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[+a-z]", version.removeprefix("v"))[0])))


def installed() -> dict[str, str]:
    """Return the versions of all installed distributions, by normalised name."""
    return {
        re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(): one.version
        for one in metadata.distributions()
        if one.metadata["Name"]
    }


def lacking(name: str, floor: tuple[int, ...], found: dict[str, str]) -> list[str]:
    """Return what is wrong with a dependency, as a list of one sentence or none."""
    wanted = ".".join(map(str, floor))
    if name not in found:
        return [f"{name} is not installed; embrew needs {name}>={wanted}"]
    if numbers(found[name]) < floor:
        return [f"{name} {found[name]} is installed; embrew needs {name}>={wanted}"]
    return []


def driver() -> str | None:
    """Return the version of the NVIDIA driver; None where there is none."""
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split("\n")[0].strip() or None if done.returncode == 0 else None


def probe() -> dict[str, Any]:
    """Return what torch sees, asked in another process, which a broken driver may crash."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return {"torch_error": f"torch took more than {PATIENCE} s to begin"}
    if done.returncode:
        return {"torch_error": done.stderr.strip()[-500:] or f"its process ended with {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def import_problems() -> list[str]:
    """Return what cannot be imported: installed packages may not fit each other."""
    command = [sys.executable, "-c", f"import {', '.join(IMPORTED)}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.returncode:
        return []
    said = [line for line in done.stderr.splitlines() if re.match(r"\w*(Error|Exception)\b", line)]
    return [f"packages cannot be imported: {said[-1] if said else done.stderr[-500:]}"]


def gpu_problems(found: dict[str, Any]) -> list[str]:
    """Return what is wrong with torch and the GPU."""
    if "torch_error" in found:
        return [f"torch cannot be used: {found['torch_error']}"]
    if not found["available"] and found["driver"]:
        return [
            f"driver {found['driver']} is there, and torch {found['torch']} (CUDA {found['cuda']}) sees no GPU; "
            "install a torch for this driver, or give --pretend"
        ]
    if found["available"] and not found["computes"]:
        return ["a product of matrices in bfloat16 is wrong on this GPU"]
    return []


def warnings() -> list[str]:
    """Return what some items do without."""
    found = [f"{name} is not installed" for name in USEFUL if find_spec(MODULES.get(name, name)) is None]
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        found.append("there is no C compiler; Triton, and with it FlexAttention and fused kernels, cannot be used")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        found.append("Python.h is missing; Triton may not be able to compile what starts its kernels")
    return found


def existing(place: Path) -> Path:
    """Return a path, or the nearest folder above it that exists."""
    return place if place.exists() else existing(place.parent)


def lines(found: dict[str, Any]) -> list[str]:
    """Return the findings for a reader."""
    gpu = f"{found['gpu']} (compute {found['compute']}), {found['free_gb']:.0f} of {found['total_gb']:.0f} GB free" if (
        found.get("available")
    ) else "none"  # fmt: skip
    said = [
        f"python {found['python']} ({found['executable']}), {found['machine']}, glibc {found['glibc'] or 'unknown'}",
        f"torch {found.get('torch', 'not installed')}, CUDA {found.get('cuda')}, driver {found['driver'] or 'none'}",
        f"GPU: {gpu}",
        "packages: " + ", ".join(f"{name} {found['installed'].get(name, 'none')}" for name in SHOWN),
    ]
    said += [f"warning: {one}" for one in found["warnings"]]
    said += [f"MISSING: {one}" for one in found["missing"]]
    return said


SHOWN = ("transformers", "sentence-transformers", "peft", "accelerate", "datasets", "triton", "flash-attn",
         "bitsandbytes")  # fmt: skip
