"""`embrew` with small chunks of a corpus, for `torchrun -m tests.evaluation.launched`."""

import sys

from embrew.evaluation.kinds import retrieval

if __name__ == "__main__":
    retrieval.CHUNK = 16
    from embrew.cli import main

    sys.argv[0] = "embrew"
    main()
