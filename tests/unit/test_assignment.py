"""Ownership: epochs, leaving and gone, and what may be committed for whom."""

from __future__ import annotations

import pytest

from headrace.assignment import Assignment
from headrace.envelope import Record
from headrace.offsets import Sequence, Tracker, decode_map

A, B = ("main", 0), ("main", 1)
SETTLE = Sequence("inc", 1)


def record(tp: tuple[str, int], offset: int, epoch: int) -> Record:
    return Record(*tp, offset, epoch, None, b"{}", [], 0)


def owning(*tps: tuple[str, int], committed: int = 10) -> tuple[Assignment, dict[tuple[str, int], int]]:
    """An assignment whose partitions are restored at offset 10."""
    assignment = Assignment()
    epochs = assignment.assigned(tps, "m1")
    for tp, epoch in epochs.items():
        assert assignment.restored(tp, epoch, Tracker(10), committed)
    return assignment, epochs


def test_every_assignment_has_an_epoch_of_its_own() -> None:
    """A partition that comes back is not the one that left: records read before are not current any more."""
    assignment, first = owning(A, B)
    assert len(set(first.values())) == 2
    assignment.gone([A], "m2")
    assert assignment.epoch(A) is None
    again = assignment.assigned([A], "m3")
    assert again[A] not in first.values()
    assert not assignment.is_current(record(A, 10, first[A]))
    assert assignment.is_current(record(A, 10, again[A]))
    assert assignment.is_current(record(B, 10, first[B]))


def test_a_snapshot_is_never_changed() -> None:
    """What a settle took stays as it was taken; the version tells that ownership moved on."""
    assignment, epochs = owning(A, B)
    before = assignment.snapshot
    assignment.gone([A], "m2")
    assert dict(before.epochs) == epochs
    assert before.metadata == "m1"
    assert assignment.snapshot.version > before.version
    assert dict(assignment.snapshot.epochs) == {B: epochs[B]}


def test_newer_metadata_is_no_change_of_ownership() -> None:
    """Each poll brings metadata; a settle under way is not disturbed by it."""
    assignment, _ = owning(A)
    version = assignment.snapshot.version
    assignment.refreshed("m2")
    assert (assignment.snapshot.version, assignment.snapshot.metadata) == (version, "m2")


def test_what_leaves_begins_nothing_and_may_still_be_settled() -> None:
    """Between the revocation's start and its end: no new work, but the epoch is owned, with the callback's metadata."""
    assignment, epochs = owning(A, B)
    assignment.track(A, [10])
    assignment.leaving([A], "m2")
    assert not assignment.is_current(record(A, 10, epochs[A]))
    assert assignment.is_current(record(B, 10, epochs[B]))
    assert assignment.epoch(A) == epochs[A]
    assert assignment.snapshot.metadata == "m2"
    assert assignment.commits({A: [10]}, assignment.snapshot, SETTLE)[A].frontier == 11


def test_what_is_unknown_may_leave_or_go() -> None:
    """A revocation of what was never ours harms nothing."""
    assignment, epochs = owning(A)
    assignment.leaving([B], "m2")
    assignment.gone([B], "m3")
    assert dict(assignment.snapshot.epochs) == epochs


def test_a_map_read_too_late_is_not_taken() -> None:
    """The partition has gone, or is under another epoch: the committed offset may have moved since."""
    assignment = Assignment()
    first = assignment.assigned([A], "m1")[A]
    second = assignment.assigned([A], "m2")[A]
    assert not assignment.restored(A, first, Tracker(1), 1)
    assert assignment.with_tracker(A, lambda tracker: tracker) is None
    assert assignment.restored(A, second, Tracker(5), 5)
    assignment.gone([A], "m3")
    assert not assignment.restored(A, second, Tracker(9), 9)


def test_commits_are_only_for_what_the_snapshot_and_we_own() -> None:
    """A partition that went, and one that came back under a new epoch, get no offset from an older snapshot."""
    assignment, _ = owning(A, B)
    snapshot = assignment.snapshot
    assignment.track(A, [10])
    assignment.track(B, [10])
    assignment.gone([A, B], "m2")
    epoch = assignment.assigned([B], "m3")[B]
    assignment.restored(B, epoch, Tracker(20), 10)
    assert assignment.commits({A: [10], B: [10]}, snapshot, SETTLE) == {}
    assert set(assignment.commits({}, assignment.snapshot, SETTLE)) == {B}


def test_a_partition_without_a_tracker_is_not_committed() -> None:
    """Before its map is read nobody knows where it stands."""
    assignment = Assignment()
    assignment.assigned([A], "m1")
    assert assignment.commits({A: [1]}, assignment.snapshot, SETTLE) == {}
    assert not assignment.behind()
    assignment.track(A, [1])


def test_a_commit_names_what_is_done_behind_the_head() -> None:
    """The frontier stays at the oldest unresolved offset, the map tells the rest, and carries the settle's name."""
    assignment, _ = owning(A)
    assignment.track(A, [10, 11, 12])
    commit = assignment.commits({A: [11]}, assignment.snapshot, SETTLE)[A]
    assert commit.frontier == 10
    found = decode_map(commit.frontier, commit.metadata)
    assert found is not None
    assert [found.resolved(n) for n in (10, 11, 12)] == [False, True, False]
    assert found.sequence == SETTLE


def test_offsets_resolve_only_once_the_commit_is_known() -> None:
    """Asking what would be committed changes nothing: the transaction may abort."""
    assignment, _ = owning(A)
    assignment.track(A, [10, 11])
    snapshot = assignment.snapshot
    commits = assignment.commits({A: [10]}, snapshot, SETTLE)
    assert assignment.frontiers() == {A: (10, 2)}
    assignment.committed({A: [10]}, commits, snapshot)
    assert assignment.frontiers() == {A: (11, 1)}


def test_a_settle_of_an_older_epoch_resolves_nothing() -> None:
    """The transaction was committed, then the partition came back: its new tracker is not touched."""
    assignment, _ = owning(A)
    assignment.track(A, [10])
    snapshot = assignment.snapshot
    commits = assignment.commits({A: [10]}, snapshot, SETTLE)
    assignment.gone([A], "m2")
    assignment.restored(A, assignment.assigned([A], "m3")[A], Tracker(10), 10)
    assignment.track(A, [10])
    assignment.committed({A: [10]}, commits, snapshot)
    assert assignment.frontiers() == {A: (10, 1)}


@pytest.mark.parametrize("gap", [1, 8, 9, 1_000, 10**12])
def test_a_frontier_that_moved_by_itself_is_committed(gap: int) -> None:
    """A gap at the end of the log leaves an offset to commit without a record: then the lag reads 0; after that nothing is behind."""
    assignment, _ = owning(A)
    assert not assignment.behind()
    assignment.with_tracker(A, lambda tracker: tracker.at_end(10 + gap))
    assert assignment.behind()
    snapshot = assignment.snapshot
    commits = assignment.commits({}, snapshot, SETTLE)
    assert commits[A].frontier == 10 + gap
    assignment.committed({}, commits, snapshot)
    assert not assignment.behind()
    assert assignment.commits({}, snapshot, SETTLE) == {}
