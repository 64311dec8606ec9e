"""Several processes of a module of the tests, met over gloo."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.fresh import Fresh
from tests.ports import free_port

ROOT = Path(__file__).parents[2]


def in_processes(count: int, module: str, *arguments: str, timeout: int) -> None:
    """Run `python -m module` in several processes; what they wrote to stderr is the error if one fails."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
    done = subprocess.run(
        [*command, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def in_forks(count: int, module: str, *arguments: str, timeout: int) -> None:
    """The same, with forks of a process that has imported libraries, and without torchrun, which imports them again."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    meeting["LOCAL_WORLD_SIZE"] = str(count)
    processes = []
    for rank in range(count):
        environment = {**os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        processes.append(Fresh([sys.executable, "-m", module, *arguments], cwd=ROOT, env=environment))
    deadline = time.monotonic() + timeout
    while (codes := [process.poll() for process in processes]) != [0] * count:
        if any(codes) or time.monotonic() > deadline:
            for process in processes:
                process.kill()
            said = [process.communicate()[1].decode()[-3000:] for process in processes]
            raise AssertionError(f"exit codes {codes}\n" + "\n".join(said))
        time.sleep(0.02)
