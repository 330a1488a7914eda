"""The dashboard's lower half: dead letters, providers, what workers run on, the workers themselves."""

from __future__ import annotations

from dashboard import Panel, Row, quantiles

_FAULTS = "overloaded|server_error|connection|timeout|invalid_response|not_found"


def _calls(classes: str) -> str:
    """Calls per second to each provider that ended in one of these classes."""
    return f'sum by (provider) (rate(headrace_call_latency_seconds_count{{+provider!="none", class=~"{classes}"}}[]))'


DEAD = Row(
    "Dead letters",
    (
        Panel(
            "Open dead letters by class",
            "Not answered since they died. Missing until a worker has read what there is.",
            "short",
            (("max by (class) (headrace_dead_letters_open{}) > 0", "{{class}}"),),
            stacked=True,
        ),
        Panel(
            "Age of the oldest open one",
            "After an hour somebody is called.",
            "s",
            (("max(headrace_dead_letters_oldest_open_age_seconds{})", "oldest"),),
            thresholds=(("green", None), ("red", 3600)),
        ),
        Panel(
            "Dead letters by class",
            "As they come.",
            "ops",
            (('sum by (class) (rate(headrace_records_settled_total{+outcome="dead"}[]))', "{{class}}"),),
            stacked=True,
        ),
        Panel(
            "Told to sinks",
            "Dead letters told, by sink and what came of it.",
            "ops",
            (("sum by (sink, end) (rate(headrace_alerts_total{}[]))", "{{sink}} {{end}}"),),
        ),
        Panel(
            "Counted",
            "How much of dead letters and results is read; below 1 the open ones are not known.",
            "percentunit",
            (("max(headrace_dead_letters_followed_ratio{})", "read"),),
        ),
        Panel(
            "Beyond memory", "Open dead letters that are not tracked.", "short", (("max(headrace_dead_letters_untracked{})", "untracked"),)
        ),
    ),
)

PROVIDERS = Row(
    "Providers",
    (
        Panel("Latency by provider", "Calls of any end.", "s", quantiles("headrace_call_latency_seconds", "provider, ")),
        Panel(
            "Latency of answers",
            "Calls that gave an answer.",
            "s",
            quantiles("headrace_call_latency_seconds", "provider, ", 'class="none"'),
        ),
        Panel(
            "Calls by class",
            "What came of the calls; none is an answer.",
            "ops",
            (("sum by (provider, class) (rate(headrace_call_latency_seconds_count{}[]))", "{{provider}} {{class}}"),),
            stacked=True,
        ),
        Panel(
            "Share of calls that fail",
            "Of answers and failures of the provider's own; neither 429s nor what a caller asked wrongly. Above one half for long somebody is told.",
            "percentunit",
            ((f"{_calls(_FAULTS)} / {_calls(f'none|{_FAULTS}')}", "{{provider}}"),),
            thresholds=(("green", None), ("red", 0.5)),
        ),
        Panel(
            "Tokens",
            "Of completed requests, as the provider counted them.",
            "ops",
            (("sum by (provider, model, kind) (rate(headrace_tokens_total{}[]))", "{{provider}} {{model}} {{kind}}"),),
            stacked=True,
        ),
        Panel(
            "Pauses",
            "Keys and models of a provider that are shut.",
            "short",
            (
                ("max by (provider, class) (headrace_provider_paused_scopes{})", "{{provider}} {{class}}"),
                ("sum by (provider, class) (increase(headrace_provider_pauses_total{}[]))", "begun: {{provider}} {{class}}"),
            ),
        ),
        Panel(
            "Until it reopens",
            "Time until the last of a provider's pauses ends, by class.",
            "s",
            (("max by (provider, class) (headrace_provider_reopens_seconds{})", "{{provider}} {{class}}"),),
        ),
        Panel(
            "Endpoints in flight",
            "Calls under way to each address.",
            "short",
            (("sum by (provider, endpoint) (headrace_endpoint_calls_in_flight{})", "{{provider}} {{endpoint}}"),),
        ),
        Panel(
            "Endpoints left out",
            "How many workers do not call an address, and why: it kept failing, or fails its health check.",
            "short",
            (
                ("sum by (provider, endpoint, reason) (headrace_endpoint_out{}) > 0", "{{provider}} {{endpoint}}: {{reason}}"),
                (
                    'sum by (provider, endpoint) (headrace_endpoint_health{+state="failing"}) > 0',
                    "{{provider}} {{endpoint}}: health check fails",
                ),
            ),
        ),
        Panel(
            "Possible extra calls",
            "Requests that may have been paid for once more than needed, at most one call each.",
            "short",
            (("sum by (reason) (increase(headrace_extra_calls_possible_total{}[]))", "{{reason}}"),),
        ),
    ),
)

SERVERS = Row(
    "Kafka, Redis and claims",
    (
        Panel(
            "Transactions",
            "By how they ended. Ambiguous ones were found to be there, or not.",
            "ops",
            (("sum by (lane, end) (rate(headrace_transactions_total{}[]))", "{{lane}} {{end}}"),),
        ),
        Panel(
            "Time of a settle",
            "From the beginning of a transaction to its known commit.",
            "s",
            quantiles("headrace_settle_duration_seconds", "lane, "),
        ),
        Panel("Records a settle", "How many share a transaction.", "short", quantiles("headrace_settle_records", "lane, ")),
        Panel(
            "Outcomes held back or handed over",
            "The broker refuses what they write, or their partition went to another worker first.",
            "short",
            (
                ("sum by (lane) (increase(headrace_outcomes_blocked_total{}[]))", "blocked {{lane}}"),
                ("sum by (lane) (increase(headrace_outcomes_handed_over_total{}[]))", "handed over {{lane}}"),
                ("sum by (lane) (increase(headrace_records_interrupted_total{}[]))", "interrupted {{lane}}"),
            ),
        ),
        Panel("Round trip to Redis", "One call, a batch of records.", "s", quantiles("headrace_redis_round_trip_seconds", "")),
        Panel(
            "Redis",
            "1 while it can be reached, and while it admits; the epoch changes with each loss of data.",
            "short",
            (
                ("min(headrace_redis_reachable{})", "reachable"),
                ("min(headrace_redis_admission_open{})", "admits"),
                ("max(changes(headrace_redis_epoch{}[]))", "new epochs"),
            ),
        ),
        Panel(
            "Partitions furthest behind",
            "Time since the frontier moved, of partitions that lag.",
            "s",
            (
                (
                    "topk(10, max by (topic, partition) (headrace_partition_frontier_age_seconds{}) and max by (topic, partition) (headrace_partition_lag_records{}) > 0)",
                    "{{topic}}/{{partition}}",
                ),
            ),
        ),
        Panel(
            "Largest windows",
            "Offsets above the frontier that are dispatched; at 24,000 reading waits for the head.",
            "short",
            (
                ("topk(10, max by (topic, partition) (headrace_partition_window_records{}))", "{{topic}}/{{partition}}"),
                ("max by (lane) (headrace_partition_in_flight_records{})", "in flight, most of {{lane}}"),
            ),
        ),
    ),
)

PROCESS = Row(
    "Process",
    (
        Panel("Processor", "Cores in use, by worker.", "short", (("rate(process_cpu_seconds_total{}[])", "{{instance}}"),)),
        Panel("Memory", "Resident, by worker.", "bytes", (("process_resident_memory_bytes{}", "{{instance}}"),)),
        Panel("Open files", "Of what the system allows.", "percentunit", (("process_open_fds{} / process_max_fds{}", "{{instance}}"),)),
        Panel("Event loop", "Time since its last turn; above a second or two something blocks it.", "s",
              (("headrace_event_loop_beat_age_seconds{}", "{{instance}}"), ("headrace_watchdog_look_age_seconds{}", "figures of {{instance}}"))),
        Panel("Hung threads", "Threads that did not come round in time.", "short", (("headrace_threads_hung{}", "{{instance}}"),)),
        Panel("Events", "What workers told that is worth a look, by name.", "short",
              (('sum by (event) (increase(headrace_events_total{+event!~"settled|parked|wheels_moved|unclaimed|claim_taken_over|interrupted|waiters_dropped"}[])) > 0', "{{event}}"),)),
        Panel("Uptime", "By worker.", "s", (("time() - process_start_time_seconds{}", "{{instance}}"),)),
    ),
)  # fmt: skip
