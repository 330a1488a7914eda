"""The dashboard's upper half: at a glance, flow, retries."""

from __future__ import annotations

from dashboard import Panel, Row, quantiles

_BAD = (("green", None), ("red", 1))

GLANCE = Row(
    "At a glance",
    (
        Panel(
            "Answers per second",
            "Requests that were answered, in all lanes.",
            "ops",
            (('sum(rate(headrace_records_settled_total{+outcome="completed"}[]))', "answers"),),
            kind="stat",
            width=4,
            height=5,
        ),
        Panel(
            "Lag",
            "Records that are readable and not settled, in main and retry.",
            "short",
            (('sum(headrace_partition_lag_records{+lane=~"main|retry"})', "records"),),
            kind="stat",
            width=4,
            height=5,
        ),
        Panel(
            "Open dead letters",
            "Dead letters that were not answered since. Every worker of the dead-letter lane tells the same number.",
            "short",
            (("sum(max by (class) (headrace_dead_letters_open{}))", "open"),),
            kind="stat",
            width=4,
            height=5,
            thresholds=(("green", None), ("orange", 1), ("red", 100)),
        ),
        Panel(
            "Share that dies",
            "Dead letters among the requests that ended.",
            "percentunit",
            (
                (
                    'sum(rate(headrace_records_settled_total{+outcome="dead"}[])) / sum(rate(headrace_records_settled_total{+outcome=~"completed|degraded|dead"}[]))',
                    "share",
                ),
            ),
            kind="stat",
            width=4,
            height=5,
            thresholds=(("green", None), ("orange", 0.01), ("red", 0.05)),
        ),
        Panel(
            "Stalled partitions",
            "Partitions that get nowhere for no known reason: the liveness probe fails.",
            "short",
            (("sum(headrace_partition_stalled{})", "stalled"),),
            kind="stat",
            width=4,
            height=5,
            thresholds=_BAD,
        ),
        Panel(
            "Workers",
            "Processes that tell their metrics.",
            "short",
            (("count(headrace_build_info{})", "workers"),),
            kind="stat",
            width=4,
            height=5,
        ),
    ),
)

FLOW = Row(
    "Flow",
    (
        Panel(
            "Received and settled",
            "Records read, and records settled, by lane. Apart for long, they are lag.",
            "ops",
            (
                ("sum by (lane) (rate(headrace_records_received_total{}[]))", "received {{lane}}"),
                ("sum by (lane) (rate(headrace_records_settled_total{}[]))", "settled {{lane}}"),
            ),
        ),
        Panel(
            "Outcomes",
            "How records ended, in all lanes.",
            "ops",
            (("sum by (outcome) (rate(headrace_records_settled_total{}[]))", "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Lag by lane",
            "Records that are readable and not settled, on owned partitions.",
            "short",
            (("sum by (lane) (headrace_partition_lag_records{})", "{{lane}}"),),
        ),
        Panel(
            "Calls in flight",
            "Records being called, against the slots there are.",
            "short",
            (("sum by (lane) (headrace_calls_in_flight{})", "{{lane}}"), ("sum by (lane) (headrace_call_slots{})", "slots {{lane}}")),
        ),
        Panel(
            "Waiting in memory",
            "Records that wait for their time, admission or a caller; outcomes that wait for a settle.",
            "short",
            (
                ("sum by (lane) (headrace_records_waiting{})", "records {{lane}}"),
                ("sum by (lane) (headrace_outcomes_unsettled{})", "outcomes {{lane}}"),
            ),
        ),
        Panel(
            "Lanes that wait",
            "Why a lane calls nobody; 0 while none does.",
            "short",
            (
                ("max by (lane, reason) (headrace_lane_paused{})", "{{lane}}: {{reason}}"),
                ("max by (lane) (headrace_lane_full{})", "{{lane}}: full"),
            ),
        ),
        Panel(
            "Lag by partition",
            "The ten partitions that lag most: a head that is slow, or a key that is hot.",
            "short",
            (("topk(10, sum by (topic, partition) (headrace_partition_lag_records{}))", "{{topic}}/{{partition}}"),),
        ),
        Panel(
            "Age of the oldest record",
            "Of the records read and not settled, by topic, against 80 % of what the topic keeps.",
            "s",
            (
                ("max by (topic) (headrace_partition_oldest_record_age_seconds{})", "{{topic}}"),
                ("0.8 * max by (topic) (headrace_topic_retention_seconds{} > 0)", "80 % of {{topic}}"),
            ),
        ),
        Panel("Longest call under way", "By lane.", "s", (("max by (lane) (headrace_partition_oldest_call_age_seconds{})", "{{lane}}"),)),
        Panel(
            "Duplicates and deferrals",
            "Records that ended as a duplicate, by what their id was; records put off, by reason.",
            "ops",
            (
                ("sum by (of) (rate(headrace_records_duplicate_total{}[]))", "duplicate of {{of}}"),
                ("sum by (reason) (rate(headrace_records_deferred_total{}[]))", "deferred: {{reason}}"),
            ),
        ),
        Panel(
            "Read", "Bytes of keys and values, by lane.", "Bps", (("sum by (lane) (rate(headrace_received_bytes_total{}[]))", "{{lane}}"),)
        ),
        Panel(
            "Records lost",
            "Records that went from the log before they were settled.",
            "short",
            (("sum by (topic, reason) (increase(headrace_records_lost_total{}[]))", "{{topic}}: {{reason}}"),),
        ),
    ),
)

RETRIES = Row(
    "Retries and lateness",
    (
        Panel(
            "Retries by class",
            "Failures that may pass, by what they were.",
            "ops",
            (('sum by (class) (rate(headrace_records_settled_total{+outcome="retry"}[]))', "{{class}}"),),
            stacked=True,
        ),
        Panel(
            "Lateness of retries",
            "How long after its due time a retry was called.",
            "s",
            quantiles("headrace_retry_lateness_seconds", "", 'lane="retry"'),
        ),
        Panel(
            "Parked records",
            "Records that wait for a retry, by topic. Above the cap the main lane stops reading.",
            "short",
            (
                ("sum by (topic) (max by (topic, partition) (headrace_parked_records{}))", "{{topic}}"),
                ("max(headrace_parked_cap_records{})", "cap"),
            ),
        ),
        Panel(
            "Parked by wheel",
            "Records of the later topic by partition: wheel k holds delays from 2^k s on.",
            "short",
            (('max by (partition) (headrace_parked_records{+topic=~".*later.*"})', "wheel {{partition}}"),),
            stacked=True,
        ),
        Panel(
            "Moves of the wheels",
            "Records moved to a finer wheel, or back to the retry topic.",
            "ops",
            (("sum by (to) (rate(headrace_wheels_moves_total{}[]))", "{{to}}"),),
        ),
        Panel(
            "Wheels late",
            "By how much the wheel furthest behind is late, and how late a settle's latest record was.",
            "s",
            (("max(headrace_wheels_late_seconds{})", "behind"), *quantiles("headrace_wheels_lateness_seconds", "")),
        ),
        Panel(
            "Held of the wheels",
            "Records read of the wheels and held in memory until their time.",
            "short",
            (("sum(headrace_wheels_held_records{})", "held"),),
        ),
    ),
)
