"""A TCP port that no other process is given meanwhile."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """A free port of this machine, outside the range from which systems give ports to connections and to servers
    that ask for any: between this call and its use, such a server (Ray starts dozens) would take one of those."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
