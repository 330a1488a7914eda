"""prometheus-client's own metrics of a process, which are there where there is a /proc."""

from __future__ import annotations

from headrace.metrics.metric import Metric


def _process(name: str, text: str, *, kind: str = "gauge", unit: str = "") -> Metric:
    return Metric(f"process_{name}", "counter" if kind == "counter" else "gauge", (), text, unit, per="process")


PROCESS: tuple[Metric, ...] = (
    _process("cpu_seconds", "Total user and system CPU time spent.", kind="counter", unit="seconds"),
    _process("resident_memory_bytes", "Resident memory size.", unit="bytes"),
    _process("virtual_memory_bytes", "Virtual memory size.", unit="bytes"),
    _process("start_time_seconds", "Start time of the process since the epoch.", unit="seconds"),
    _process("open_fds", "Open file descriptors."),
    _process("max_fds", "Open file descriptors, at most."),
)
