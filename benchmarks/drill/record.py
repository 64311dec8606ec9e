"""What the drill has found so far: one JSON file, written after every item."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[2]
NAME = "gpu-drill"
SETTLED = ("passed", "failed", "skipped")
Result = dict[str, Any]


def code_hash(top: Path = TOP) -> str:
    """Return a hash of the Python and YAML files that items run: package, benchmarks, tests."""
    found = hashlib.sha256()
    for folder in ("src", "benchmarks", "tests"):
        for path in sorted((top / folder).rglob("*")):
            if path.suffix in (".py", ".yaml") and path.is_file():
                found.update(path.relative_to(top).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]


def commit(top: Path = TOP) -> str | None:
    """Return the commit of the checkout; None where the files are a copy without git."""
    try:
        done = subprocess.run(["git", "-C", str(top), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def now() -> str:
    """Return the time, for a reader."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


class Record:
    """Results by item, in a file that is replaced as a whole after every change.

    Attributes:
        path: the file.
        code: hash of the present code.
        keeps: whether results of earlier code count.
        items: by name: `status`, `code`, `seconds`, `attempts`, `figures`, `checks`, `reason`.
        preflight: what the machine has, as of the last call.
    """

    def __init__(self, path: Path, *, code: str, pretended: bool = False, keeps: bool = False) -> None:
        self.path, self.code, self.pretended, self.keeps = path, code, pretended, keeps
        known = json.loads(path.read_text()) if path.is_file() else {}
        if known.get("pretended", pretended) != pretended:
            raise ValueError(f"{path} holds results of {'a CPU' if pretended is False else 'a GPU'}; give --output")
        self.items: dict[str, Result] = known.get("items", {})
        self.preflight: Result = known.get("preflight", {})
        for found in self.items.values():
            if found["status"] == "running":  # the process ended before the item did
                found |= {"status": "stopped", "reason": "the drill was ended while it ran"}

    def is_settled(self, name: str) -> bool:
        """Return whether an item need not run again: it ended under the present code, or earlier results count."""
        found = self.items.get(name, {})
        if found.get("status") not in SETTLED:
            return False
        return found["code"] == self.code or (self.keeps and found["status"] != "failed")

    def attempts(self, name: str) -> int:
        """Return how often an item was begun under the present code without ending."""
        found = self.items.get(name, {})
        return int(found.get("attempts", 0)) if found.get("code") == self.code else 0

    def took(self, name: str) -> float:
        """Return the seconds that an item took under the present code before it was stopped."""
        found = self.items.get(name, {})
        return float(found.get("seconds") or 0) if found.get("code") == self.code else 0.0

    def begin(self, name: str) -> None:
        """Note that an item runs."""
        seconds, attempts = self.took(name), self.attempts(name)
        self.items[name] = {"status": "running", "code": self.code, "seconds": seconds, "attempts": attempts + 1}
        self.write()

    def end(self, name: str, result: Result, seconds: float) -> None:
        """Note how an item ended."""
        self.items[name] = {
            "attempts": self.attempts(name),
            **result,
            "code": self.code,
            "commit": commit(),
            "seconds": round(seconds, 1),
            "date": now(),
        }
        self.write()

    def forget(self, names: list[str]) -> None:
        """Let items run again."""
        for name in names:
            self.items.pop(name, None)

    def write(self) -> None:
        """Replace the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {"name": NAME, "pretended": self.pretended, "preflight": self.preflight, "items": self.items}
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(partial, self.path)
