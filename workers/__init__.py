"""One small module a process: `python -m workers.main`, `workers.retry`, `workers.dlq`. The same as `headrace worker …`."""
