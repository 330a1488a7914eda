"""The dead-letter lane: what will not pass, told to those who are to know. config → build → run → signals."""

import sys

from headrace.process import main

if __name__ == "__main__":
    sys.exit(main("dlq"))
