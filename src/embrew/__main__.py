"""`python -m embrew`, which `accelerate launch -m embrew` and `torchrun -m embrew` start on every process."""

from embrew.cli import main

if __name__ == "__main__":
    main()
