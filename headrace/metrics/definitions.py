"""Every metric a worker shows. `docs/metrics.md` is made from this list, and a test holds both to a live worker's page."""

from __future__ import annotations

from headrace.metrics.metric import Labels, Metric

_CALL_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_LATE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0)
_SETTLE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)
_REDIS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_RECORDS = (1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2000.0)
_PARTITION = ("lane", "topic", "partition")


def _counter(name: str, labels: Labels, text: str, *, unit: str = "", per: str = "lane") -> Metric:
    return Metric(f"headrace_{name}", "counter", labels, text, unit, per=per)


def _gauge(name: str, labels: Labels, text: str, *, unit: str = "", per: str = "lane") -> Metric:
    return Metric(f"headrace_{name}", "gauge", labels, text, unit, per=per)


def _histogram(name: str, labels: Labels, text: str, buckets: tuple[float, ...], *, unit: str = "", per: str = "lane") -> Metric:
    return Metric(f"headrace_{name}", "histogram", labels, text, unit, buckets, per=per)


# flow
RECEIVED = _counter(
    "records_received", ("lane",), "Records read and given to the lane. A record read again by its partition's next owner counts there too."
)
RECEIVED_BYTES = _counter("received_bytes", ("lane",), "Keys and values of the records received.", unit="bytes")
SETTLED = _counter(
    "records_settled",
    ("lane", "outcome", "class"),
    "Records settled: result, retry or dead letter and offset committed in one transaction. `outcome` says how they "
    "ended, `class` with which error (`none` without).",
)
DUPLICATES = _counter(
    "records_duplicate",
    ("lane", "of"),
    "Records that ended as a duplicate, by what their request id was already: completed, waiting, dead, or in conflict (another content).",
)
DEFERRED = _counter("records_deferred", ("lane", "reason"), "Records put off without an attempt spent, by reason.")
UNREAD = _counter(
    "records_settled_unread", ("lane",), "Records settled whose latency or tokens could not be counted: a handler gave them another type."
)
HANDED_OVER = _counter(
    "outcomes_handed_over", ("lane",), "Outcomes whose partition left before they were settled: left in Redis for its next owner."
)
INTERRUPTED = _counter(
    "records_interrupted", ("lane",), "Records dropped unsettled at a stop or a rebalance; their partition's next owner reads them again."
)
IN_FLIGHT = _gauge("calls_in_flight", ("lane",), "Records being called right now.")
SLOTS = _gauge("call_slots", ("lane",), "Calls the lane makes at once, at most (`limits.concurrency`).")
WAITING = _gauge("records_waiting", ("lane",), "Records in memory that wait for their time, for admission or for a caller.")
UNSETTLED = _gauge("outcomes_unsettled", ("lane",), "Outcomes that wait for a settle. At `limits.unsettled_outcomes` no call begins.")
FULL = _gauge("lane_full", ("lane",), "1 while the lane holds all it may (`limits.read_ahead_*`) and does not read.")
JOINED = _gauge("lane_joined", ("lane",), "1 once the lane has joined its group and knows where its partitions stand.")
PAUSED = _gauge("lane_paused", ("lane", "reason"), "1 while all of the lane waits for this reason; a reason is no stall.")
SETTLED_AGO = _gauge("lane_settled_age_seconds", ("lane",), "Time since the lane's last settle here.", unit="seconds")

# partitions
LAG = _gauge(
    "partition_lag_records",
    _PARTITION,
    "Offsets that are readable and not settled, on owned partitions. Of a wheel: records whose time to move has come.",
)
FRONTIER = _gauge("partition_frontier_offset", _PARTITION, "The lowest offset that is not settled: what is committed.")
FRONTIER_AGE = _gauge(
    "partition_frontier_age_seconds",
    _PARTITION,
    "Time since the frontier moved last; it stands still where there is nothing to do, too.",
    unit="seconds",
)
PARTITION_IN_FLIGHT = _gauge("partition_in_flight_records", _PARTITION, "Records given to the lane and not settled.")
OLDEST = _gauge(
    "partition_oldest_record_age_seconds",
    _PARTITION,
    "Age of the oldest record read and not settled, by its own timestamp; 0 where there is none.",
    unit="seconds",
)
OLDEST_CALL = _gauge(
    "partition_oldest_call_age_seconds", _PARTITION, "How long the longest call under way has taken; 0 without one.", unit="seconds"
)
WINDOW = _gauge(
    "partition_window_records",
    _PARTITION,
    "Offsets from the frontier to the highest one dispatched. At 24,000 reading of the partition waits for its head.",
)
STALLED = _gauge(
    "partition_stalled", _PARTITION, "1 while the partition gets nowhere for no known reason: `/livez` fails, `/status` says what holds it."
)
RETENTION = _gauge("topic_retention_seconds", ("topic",), "How long the topic keeps records; -1 for ever.", unit="seconds", per="process")
LOST = _counter("records_lost", ("topic", "reason"), "Records that went from the log before they were settled.", per="process")

# calls
LATENCY = _histogram(
    "call_latency_seconds",
    ("lane", "provider", "class"),
    "Time a call to a model took, by what came of it (class `none`: an answer). Of a handler of your own: the time it took.",
    _CALL_S,
    unit="seconds",
)
LATENESS = _histogram("retry_lateness_seconds", ("lane",), "How long after its due time a retry was called.", _LATE_S, unit="seconds")
TOKENS = _counter(
    "tokens",
    ("provider", "model", "kind"),
    "Tokens of completed requests as the provider counted them; kind is prompt or completion. A model that is not configured is `other`.",
    per="process",
)
PROVIDER_PAUSED = _gauge(
    "provider_paused_scopes",
    ("provider", "class"),
    "What is shut of a provider, by what showed that it was needed (a quota or a key): keys, or single models of one.",
    per="process",
)
PROVIDER_REOPENS = _gauge(
    "provider_reopens_seconds",
    ("provider", "class"),
    "Time until the last of a provider's pauses of this class ends; 0 without one.",
    unit="seconds",
    per="process",
)
PROVIDER_PAUSES = _counter(
    "provider_pauses", ("provider", "class"), "Pauses this worker began, by what showed that they were needed.", per="process"
)
ENDPOINT_CALLS = _gauge(
    "endpoint_calls_in_flight",
    ("provider", "endpoint"),
    "Calls under way to an endpoint: its host and port, with `#2` and so on where a provider has several of the same.",
    per="process",
)
ENDPOINT_OUT = _gauge(
    "endpoint_out",
    ("provider", "endpoint", "reason"),
    "1 while an endpoint is left out because it kept failing, by how it failed last, or because it fails its health check (`health`).",
    per="process",
)
ENDPOINT_HEALTH = _gauge(
    "endpoint_health",
    ("provider", "endpoint", "state"),
    "1 at the state its health check last found; `unchecked` where none is configured.",
    per="process",
)
POSSIBLE_EXTRA = _counter(
    "extra_calls_possible",
    ("reason",),
    "Requests that may have been paid for once more than needed: at most one call each. `taken_over`: the claim of a "
    "worker that died in the middle; `hand_over_refused`: an answer that could not be left to the next owner.",
    per="process",
)

# settling
SETTLE_TIME = _histogram(
    "settle_duration_seconds", ("lane",), "Time from the beginning of a transaction to its known commit.", _SETTLE_S, unit="seconds"
)
SETTLE_SIZE = _histogram("settle_records", ("lane",), "Records settled in one transaction.", _RECORDS)
TRANSACTIONS = _counter(
    "transactions",
    ("lane", "end"),
    "Transactions by how they ended: committed; aborted with an error; ambiguous, and found to be there (landed) or not (absent).",
)
BLOCKED = _counter("outcomes_blocked", ("lane",), "Outcomes held back because the broker refused what they write; they are tried again.")

# wheels
WHEELS_HELD = _gauge("wheels_held_records", (), "Records read of the timing wheels and held until their time.", per="process")
WHEELS_LATE = _gauge(
    "wheels_late_seconds", (), "By how much the wheel furthest behind is late; 0 while all are in time.", unit="seconds", per="process"
)
WHEELS_MOVES = _counter("wheels_moves", ("to",), "Records moved on: to a finer wheel, or back to the retry topic.", per="process")
WHEELS_LATENESS = _histogram(
    "wheels_lateness_seconds",
    (),
    "Of each settle of the wheels, by how much its latest record was past its due time.",
    _LATE_S,
    unit="seconds",
    per="process",
)
PARKED = _gauge(
    "parked_records",
    ("topic", "partition"),
    "Records that wait for a retry, by Kafka's offsets (markers included); partitions of the later topic are the "
    "wheels. Told by the main lane: take the maximum over workers.",
    per="process",
)
PARKED_CAP = _gauge(
    "parked_cap_records", (), "Above so many parked records the main lane stops reading (`limits.parked_records`).", per="process"
)

# dead letters
OPEN = _gauge(
    "dead_letters_open",
    ("class",),
    "Dead letters that were not answered since, by class. Every worker of the dead-letter lane tells the same number: "
    "take the maximum. Missing until the worker has read what there is.",
    per="process",
)
OLDEST_OPEN = _gauge(
    "dead_letters_oldest_open_age_seconds", (), "Age of the oldest open dead letter; 0 without one.", unit="seconds", per="process"
)
UNTRACKED = _gauge(
    "dead_letters_untracked",
    (),
    "Dead letters beyond what is kept in memory (1,000,000); they are not in the other figures.",
    per="process",
)
FOLLOWED = _gauge(
    "dead_letters_followed_ratio",
    (),
    "How much of the dead letters and results is read; below 1 after a start.",
    unit="ratio",
    per="process",
)
ALERTS = _counter("alerts", ("sink", "end"), "Dead letters told to a sink, by what came of it.", per="process")

# Redis
REDIS_UP = _gauge("redis_reachable", (), "0 from the first call that Redis did not answer to the first it did.", per="process")
ADMISSION = _gauge("redis_admission_open", (), "0 while what Redis lost is being restored: nothing new is admitted.", per="process")
EPOCH = _gauge(
    "redis_epoch", (), "A number that stands for Redis' epoch: the same in all workers, another one after each loss of data.", per="process"
)
ROUND_TRIP = _histogram(
    "redis_round_trip_seconds", (), "Time of one call to Redis, a batch of records each.", _REDIS_S, unit="seconds", per="process"
)

# process
EVENTS = _counter(
    "events", ("event",), "Everything the worker tells, by name; `docs/health.md` and the runbook say what matters.", per="process"
)
HUNG = _gauge("threads_hung", (), "Threads, the event loop among them, that did not come round in time.", per="process")
LOOP_AGE = _gauge(
    "event_loop_beat_age_seconds",
    (),
    "Time since the event loop's last turn; above a second or two something blocks it.",
    unit="seconds",
    per="process",
)
LOOK_AGE = _gauge("watchdog_look_age_seconds", (), "Age of the figures by lane and partition.", unit="seconds", per="process")
BUILD = Metric(
    "headrace_build",
    "info",
    ("version", "python", "lanes"),
    "What runs: the version, Python's, and the lanes of this process.",
    per="process",
)

OURS: tuple[Metric, ...] = tuple(value for value in globals().copy().values() if isinstance(value, Metric))
