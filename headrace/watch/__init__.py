"""Watching a process work: the watchdog and what it judges by, the probes that answer for it, and their HTTP server."""
