"""The main lane: jobs from `llm_requests_main`, called once each. config → build → run → signals."""

import sys

from headrace.process import main

if __name__ == "__main__":
    sys.exit(main("main"))
