"""`python -m producers.jsonl FILE|-`: the same as `headrace produce`, for an image that runs one module a process."""

from __future__ import annotations

import sys

from headrace.cli import main

if __name__ == "__main__":
    main(["produce", *sys.argv[1:]])
