"""Open a saved encoder in a separate process and write its reference vectors: `python -m embrew.reopened`.

Started by `storage.saving`, which compares them with those of the encoder that was saved.
"""

from __future__ import annotations

import sys

from safetensors.torch import save_file

from embrew.encoder import Encoder
from embrew.storage.saving import reference_vectors


def main(folder: str, out: str, device: str, *flags: str) -> None:
    """Write the reference vectors of the encoder in `folder` to the safetensors file `out`."""
    code, merge = "--trust-remote-code" in flags, "--merge-adapter" in flags
    encoder = Encoder.from_pretrained(folder, device=device, trust_remote_code=code, merge_adapter=merge)
    save_file({"vectors": reference_vectors(encoder)}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
