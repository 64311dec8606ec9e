"""Probes of torch: threads, CPU instructions, accelerators, data types, speed of matrix products."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import torch

from embrew.doctor.finding import Finding
from embrew.storage.base_model import computes, pick_device
from embrew.threads import cores

SIZE = 1024  # of the matrices that are multiplied


def threads() -> Finding:
    """Compare the number of threads of torch with the cores that this process may use."""
    usable, used = cores(), torch.get_num_threads()
    asked = os.environ.get("OMP_NUM_THREADS")
    value = f"{used} threads on {usable} usable cores" + (f", OMP_NUM_THREADS={asked}" if asked else "")
    details = {"threads": used, "between": torch.get_num_interop_threads(), "usable": usable, "OMP_NUM_THREADS": asked}
    if used > usable:
        advice = f"set OMP_NUM_THREADS={usable}: threads that share a core wait for each other"
        return Finding("threads", "warning", value, advice, details)
    return Finding("threads", "ok", value, details=details)


def instructions() -> Finding:
    """Report the vector instructions of the CPU, as torch names them."""
    found = torch.cpu.get_capabilities()
    wide = [name for name, there in found.items() if there is True]
    details = {name: there for name, there in found.items() if isinstance(there, bool | int | str)}
    details["kernels"] = torch.backends.cpu.get_cpu_capability()
    shown = [name for name in wide if name.startswith(("avx2", "avx512_bf16", "avx512_vnni", "amx", "bf16", "sve"))]
    value = f"{details['kernels']} kernels; {', '.join(sorted(shown)) or 'none of AVX2, AVX512-BF16, AMX, BF16'}"
    return Finding("instructions", "ok", value, details=details)


def accelerators() -> Iterator[Finding]:
    """Report GPUs: name, memory, driver, and whether they compute in bfloat16."""
    built = torch.version.cuda or getattr(torch.version, "hip", None)
    count = torch.cuda.device_count()
    for index in range(count):
        about = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        details = {
            "name": about.name,
            "memory": total,
            "free": free,
            "compute": f"{about.major}.{about.minor}",
            "bfloat16": native,
            "toolkit": built,
            "driver": _driver(),
        }
        value = f"{about.name}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free, compute {about.major}.{about.minor}"
        advice = "" if native else "open models with --dtype float32: it does not compute in bfloat16"
        yield Finding(f"cuda:{index}", "ok" if native else "warning", value, advice, details)
    if torch.backends.mps.is_available():
        yield Finding("mps", "ok", "Apple GPU; embrew takes it where you name it (device='mps')")
    elif not count and built:
        driver = _driver()
        advice = "" if not driver else "the driver may be too old for this torch: compare nvidia-smi with pytorch.org"
        value = f"no GPU; torch is built for CUDA {built}" + (f", the driver is {driver}" if driver else "")
        yield Finding("accelerator", "warning" if driver else "ok", value, advice)
    elif not count:
        yield Finding("accelerator", "ok", "no GPU")


def dtypes() -> Iterator[Finding]:
    """Report which data types the device supports and which it emulates."""
    device = pick_device(None)
    native = computes(torch.bfloat16, device)
    said = "native" if native else "emulated, many times slower than float32; models are opened in float32"
    yield Finding("bfloat16", "ok", f"{said} ({device.type})", details={"device": device.type, "native": native})


def multiply() -> Iterator[Finding]:
    """Measure the speed of matrix products; a low one points at the number of threads or at other load."""
    device = pick_device(None)
    kinds = [torch.float32, *([torch.bfloat16] if computes(torch.bfloat16, device) else [])]
    for dtype in kinds:
        name = str(dtype).removeprefix("torch.")
        a, b = (torch.randn(SIZE, SIZE, device=device).to(dtype) for _ in range(2))
        fastest = min(_seconds(a, b) for _ in range(5))
        rate = 2 * SIZE**3 / fastest / 1e9
        details = {"gflops": round(rate, 1), "device": device.type, "threads": torch.get_num_threads()}
        yield Finding(f"matrix product, {name}", "ok", f"{rate:,.0f} GFLOP/s ({device.type})", details=details)


def _seconds(a: torch.Tensor, b: torch.Tensor) -> float:
    began = time.perf_counter()
    (a @ b)[0, 0].item()  # waits for a GPU too
    return time.perf_counter() - began


def _driver() -> str | None:
    try:
        number = int(torch._C._cuda_getDriverVersion())  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):
        return None
    return f"{number // 1000}.{number % 1000 // 10}" if number else None
