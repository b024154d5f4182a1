"""``python -m benchmarks``: the same as ``cll bench``."""

from benchmarks.speed import main

if __name__ == "__main__":
    main()
