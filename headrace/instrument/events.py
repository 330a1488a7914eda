"""Every event there is, and how loud the log says it. A test holds the list to the code: no event is told that is not here."""

from __future__ import annotations

from collections.abc import Mapping

QUIET = "quiet"  # one for each batch or record: counted, not logged

LEVELS: Mapping[str, str] = {
    # a worker's life
    "provider": "info",
    "not_used": "warning",
    "started": "info",
    "reading": "info",
    "stopping": "info",
    "stopped": "info",
    "cancel_ignored": "error",
    "topics_differ": "warning",
    # watching itself
    "health_listening": "info",
    "stalled": "error",
    "progressing": "info",
    "window_full": "warning",
    "call_overdue": "error",
    "thread_hung": "error",
    "thread_turns": "info",
    "retention_near": "error",
    "watchdog_failed": "error",
    # reading
    "group_protocol": "info",
    "assigned": "info",
    "revoked": "info",
    "partition_lost": "warning",
    "records_lost": "error",
    "committed_unreadable": "warning",
    "source_error": "warning",
    "source_failed": "error",
    "pause_failed": "warning",
    "lane_paused": "warning",
    "lane_resumed": "info",
    "parked_unknown": "warning",
    # settling
    "settled": QUIET,
    "interrupted": QUIET,
    "handed_over": "info",
    "settle_again": "warning",
    "settle_blocked": "error",
    "settle_failed": "error",
    "ambiguous_commit": "warning",
    "kafka_unavailable": "warning",
    "producer_replaced": "warning",
    "producer_purge_failed": "warning",
    # claims
    "claim_taken_over": QUIET,
    "waiters_dropped": QUIET,
    "unclaimed": QUIET,
    "claim_lost": "warning",
    "claim_unreadable": "error",
    "claims_voided": "info",
    "committed_unavailable": "warning",
    "store_unavailable": "warning",
    "store_back": "info",
    "store_suspected": "warning",
    "store_lost": "error",
    "claims_reasserted": "info",
    "restoring": "info",
    "restored": "info",
    "restore_waits": "error",
    "admission_open": "info",
    "beat_missed": QUIET,
    "mark_refused": "info",
    "mark_failed": "error",
    "marks_dropped": "error",
    "marks_left": "error",
    "hand_over_refused": "warning",
    "hand_over_unwritable": "error",
    "answer_unreadable": "error",
    # targets
    "alert": "error",
    "target_shut": "warning",
    "target_reopened": "info",
    "pauses_not_shared": "warning",
    # wheels
    "wheels_assigned": "info",
    "wheels_moved": QUIET,
    "wheels_record_refused": "error",
    "wheels_settle_failed": "warning",
    "wheels_stalled": "error",
    "wheels_stopped": "error",
    "broker_clock_skew": "error",
    # dead letters
    "alert_sent": "info",
    "alert_failed": "error",
    "alert_refused": "error",
    "alerts_unsent": "error",
    # telling itself
    "hook_failed": "error",
}
