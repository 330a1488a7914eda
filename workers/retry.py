"""The retry lane: what may pass, called again when its time comes; and the timing wheels. config → build → run → signals."""

import sys

from headrace.process import main

if __name__ == "__main__":
    sys.exit(main("retry"))
