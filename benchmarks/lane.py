"""One main lane over a topic that is already full, as a process of its own: prints its figures as a line of JSON.

`python -m benchmarks.lane RECORDS`, with a worker's usual environment. The clock starts at the first settle.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from headrace.instrument.log import configure
from headrace.loading import load
from headrace.process import run


class Meter:
    """A hook: counts settled records, and stops the process when all are."""

    def __init__(self, records: int) -> None:
        self._records = records
        self.sizes: list[int] = []
        self._began = (0.0, 0.0)
        self._ended = (0.0, 0.0)

    def __call__(self, name: str, fields: Mapping[str, Any]) -> None:
        """Count a settle."""
        if name != "settled":
            return
        self.sizes.append(sum(fields["counts"].values()))
        self._ended = (time.monotonic(), time.process_time())
        if len(self.sizes) == 1:
            self._began = self._ended
        if sum(self.sizes) >= self._records:
            os.kill(os.getpid(), signal.SIGTERM)

    def figures(self) -> dict[str, float | int]:
        """Records a second and CPU µs a record, both after the first settle; settles; memory in MB."""
        counted = sum(self.sizes[1:])
        wall_s, cpu_s = (end - begin for begin, end in zip(self._began, self._ended, strict=True))
        return {
            "records": sum(self.sizes),
            "records_per_s": round(counted / wall_s),
            "cpu_us_per_record": round(cpu_s / counted * 1e6, 1),
            "settles": len(self.sizes),
            "records_per_settle": round(sum(self.sizes) / len(self.sizes)),
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }


def main() -> int:
    """Run until the given number of records is settled."""
    configure(level="error")
    meter = Meter(int(sys.argv[1]))
    code = run(load(), ["main"], hooks=[meter])
    sys.stdout.write(json.dumps(meter.figures()) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
