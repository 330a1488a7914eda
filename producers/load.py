"""`python -m producers.load …`: the same as `headrace load`, for an image that runs one module a process."""

from __future__ import annotations

import sys

from headrace.cli import main

if __name__ == "__main__":
    main(["load", *sys.argv[1:]])
