"""The tracker against a naive model, and the map codec against every pattern and every forgery."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.offsets import METADATA_CHARS, WINDOW, Map, Sequence, Tracker, decode_map, encode_map

SEQUENCE = Sequence("Zz09-_aaaaaa", (1 << 64) - 1)


def _bits(places: set[int]) -> int:
    return sum(1 << place for place in places)


def _signed(frontier: int, body: str) -> str:
    return f"{body}.{zlib.crc32(f'{frontier}.{body}'.encode()):08x}"


# --- the codec ---------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    width=st.sampled_from([0, 1, 7, 8, 9, 127, 128, 1000, 23_999, WINDOW]) | st.integers(0, WINDOW),
    density=st.sampled_from([0.0, 0.001, 0.02, 0.06, 0.3, 0.5, 0.97, 1.0]),
    frontier=st.integers(0, 2**63 - 1),
)
def test_any_pattern_of_a_full_window_fits_and_comes_back(seed: int, width: int, density: float, frontier: int) -> None:
    """Whatever is unresolved in up to 24,000 offsets, the map is ASCII of at most 4,095 characters and decodes to itself."""
    dice = random.Random(seed)
    found = Map(frontier, frontier + width, _bits({i for i in range(width) if dice.random() < density}), SEQUENCE)
    text = encode_map(found)
    assert len(text) <= METADATA_CHARS
    assert text.isascii()
    assert text.isprintable()
    assert decode_map(frontier, text) == found


@settings(max_examples=100, deadline=None)
@given(runs=st.lists(st.integers(1, 20_000), max_size=40), first=st.booleans())
def test_long_runs_come_back(runs: list[int], first: bool) -> None:
    """Runs of every length, three-byte distances included, survive the run-length form."""
    bits, width, value = 0, 0, first
    for length in runs:
        run = min(length, WINDOW - width)
        bits |= ((1 << run) - 1) << width if value else 0
        width, value = width + run, not value
    found = Map(5, 5 + width, bits, Sequence("a", 0))
    assert decode_map(5, encode_map(found)) == found


def test_alternating_pattern_is_a_bitmap_that_fits() -> None:
    """The pattern with the most runs takes the bitmap, and still leaves room for the longest sequence."""
    found = Map(2**63, 2**63 + WINDOW, _bits(set(range(0, WINDOW, 2))), SEQUENCE)
    assert 4_000 < len(encode_map(found)) <= METADATA_CHARS


def test_few_in_flight_cost_few_characters() -> None:
    """One slow call at the head of a full window is a map of tens of characters, not of thousands."""
    assert len(encode_map(Map(0, WINDOW, 1, Sequence("abcdefgh", 1)))) < 60


@pytest.mark.parametrize(
    "found",
    [
        Map(0, WINDOW + 1, 1, Sequence("a", 1)),
        Map(5, 4, 0, Sequence("a", 1)),
        Map(0, 1, 0b10, Sequence("a", 1)),
        Map(0, 1, 1, Sequence("thirteen_long", 1)),
        Map(0, 1, 1, Sequence("", 1)),
        Map(0, 1, 1, Sequence("a.b", 1)),
        Map(0, 1, 1, Sequence("a\n", 1)),
        Map(0, 1, 1, Sequence("a", -1)),
        Map(0, 1, 1, Sequence("a", 1 << 64)),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_committed(found: Map) -> None:
    """A map too wide, bits outside it, or a sequence that would not parse raise ValueError."""
    with pytest.raises(ValueError, match="no map"):
        encode_map(found)


@settings(max_examples=300, deadline=None)
@given(frontier=st.integers(0, 2**63), metadata=st.none() | st.text(max_size=200) | st.text("1.abrf0_-=", max_size=80))
def test_foreign_metadata_is_no_map(frontier: int, metadata: str | None) -> None:
    """What some other client wrote as metadata is ignored, whatever it is."""
    assert decode_map(frontier, metadata) is None


@settings(max_examples=300, deadline=None)
@given(
    body=st.from_regex(r"\A1\.[A-Za-z0-9_-]{1,12}\.[0-9a-f]{1,16}\.[0-9a-f]{1,4}\.[rb][A-Za-z0-9_-]{0,60}\Z")
    | st.from_regex(r"\A1\.a\.1\.[0-9a-f]{1,2}\.r[A-Za-z0-9_-]{0,12}\Z"),
)
def test_forged_maps_never_raise_and_never_leave_their_width(body: str) -> None:
    """With a right checksum over any payload, decoding gives None, or a map no wider than it says."""
    found = decode_map(7, _signed(7, body))
    if found is not None:
        assert found.frontier == 7
        assert 0 <= found.end - 7 <= WINDOW
        assert not found.unresolved >> (found.end - 7)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), place=st.integers(0, 10_000), char=st.characters())
def test_one_changed_character_voids_the_map(seed: int, place: int, char: str) -> None:
    """The checksum notices every single changed character."""
    text = encode_map(Map(100, 400, random.Random(seed).getrandbits(300), Sequence("abc", 77)))
    place %= len(text)
    forged = text[:place] + char + text[place + 1 :]
    assert forged == text or decode_map(100, forged) is None


def test_map_of_another_frontier_is_void() -> None:
    """The checksum covers the committed offset: a map next to an offset somebody reset is not trusted."""
    text = encode_map(Map(100, 108, 0b1011, Sequence("abc", 1)))
    assert decode_map(100, text) is not None
    assert decode_map(101, text) is None


@pytest.mark.timeout(5)
@pytest.mark.parametrize("metadata", ["1.a.1.1.b" + "A" * 10_000_000, "1." + "." * 10_000_000, "\x00" * 10_000_000, "é" * 4_000, "\ud800"])
def test_huge_or_odd_metadata_is_bounded(metadata: str) -> None:
    """Ten megabytes, NULs, lone surrogates: None, at once."""
    assert decode_map(0, metadata) is None


def test_map_answers_for_single_offsets() -> None:
    """Below the frontier all is resolved, inside the map what it says, from its end on nothing."""
    found = Map(10, 14, 0b0101, Sequence("a", 1))
    assert [found.resolved(offset) for offset in range(9, 16)] == [True, False, True, False, True, False, False]
    assert found.offsets() == [10, 12]


# --- the tracker: examples -----------------------------------------------------------------------------------------


def test_frontier_waits_for_the_head_and_jumps_over_what_is_done() -> None:
    """Completion out of order moves the frontier only when the lowest offset resolves."""
    tracker = Tracker(10)
    tracker.track([10, 11, 12, 15])
    tracker.resolve([11, 12])
    assert (tracker.frontier, tracker.in_flight) == (10, 2)
    tracker.resolve([10])
    assert tracker.frontier == 15
    tracker.resolve([15])
    assert (tracker.frontier, tracker.in_flight) == (16, 0)


def test_end_of_partition_takes_the_frontier_over_trailing_markers() -> None:
    """With nothing in flight, lag reads 0 at the end; with something in flight, as soon as that resolves."""
    tracker = Tracker(0)
    tracker.at_end(3)
    assert tracker.frontier == 3
    tracker.track([3])
    tracker.at_end(90_000)
    assert tracker.frontier == 3
    assert decode_map(3, tracker.committable((), SEQUENCE).metadata) == Map(3, 4, 1, SEQUENCE)
    assert tracker.committable([3], SEQUENCE).frontier == 90_000
    tracker.resolve([3])
    assert tracker.frontier == 90_000


def test_aborted_settle_changes_nothing() -> None:
    """`committable` alone resolves nothing: asked again without the aborted offsets, it commits none of them."""
    tracker = Tracker(0)
    tracker.track(range(4))
    assert tracker.committable([0, 1], SEQUENCE).frontier == 2
    assert tracker.committable([], SEQUENCE).frontier == 0
    assert (tracker.frontier, tracker.in_flight) == (0, 4)


def test_window_holds_the_span_not_the_count() -> None:
    """A record 24,000 above a slow head has no room, and tracking it regardless is refused."""
    tracker = Tracker(0)
    tracker.track([0])
    assert tracker.room(WINDOW - 1)
    assert not tracker.room(WINDOW)
    with pytest.raises(ValueError, match="outside"):
        tracker.track([WINDOW])


def test_empty_window_has_room_behind_any_gap() -> None:
    """With nothing open, a gap wider than the window stalls nothing."""
    tracker = Tracker(0)
    assert tracker.room(1_000_000)
    tracker.track([1_000_000])
    assert tracker.frontier == 1_000_000


def test_restart_wants_only_what_was_unresolved() -> None:
    """After a restore, settled offsets above the frontier are not wanted; unresolved and new ones are."""
    first = Tracker(0)
    first.track(range(6))
    commit = first.committable([0, 2, 4], SEQUENCE)
    second = Tracker(commit.frontier, decode_map(*commit))
    assert second.in_flight == 0
    assert [offset for offset in range(8) if second.wanted(offset)] == [1, 3, 5, 6, 7]


def test_restored_map_is_kept_until_it_is_read() -> None:
    """A commit made before the restored offsets were read again still says what is resolved above them."""
    restored = Map(1, 6, 0b10101, SEQUENCE)
    tracker = Tracker(1, restored)
    assert decode_map(*tracker.committable((), SEQUENCE)) == restored
    tracker.track([1])
    assert decode_map(*tracker.committable([1], SEQUENCE)) == Map(3, 6, 0b101, SEQUENCE)


def test_what_reading_passes_by_is_lost_and_counted() -> None:
    """Restored-unresolved offsets that are no longer there stop holding the frontier, and are counted."""
    tracker = Tracker(1, Map(1, 6, 0b10101, SEQUENCE))
    assert tracker.wanted(5)
    assert (tracker.lost, tracker.frontier) == (2, 5)
    tracker.at_end(6)
    assert (tracker.lost, tracker.frontier) == (3, 6)


def test_lost_head_of_a_full_window_makes_room() -> None:
    """A full restored window whose head is gone does not stall the partition."""
    tracker = Tracker(0, Map(0, WINDOW, 1, SEQUENCE))
    assert tracker.wanted(WINDOW)
    assert tracker.room(WINDOW)
    tracker.track([WINDOW])
    assert (tracker.lost, tracker.frontier) == (1, WINDOW)


@pytest.mark.parametrize("offset", [3, 5, 6])
def test_tracking_a_resolved_offset_is_refused(offset: int) -> None:
    """An offset below the frontier, resolved above it, or skipped as a gap cannot be handled again by mistake."""
    tracker = Tracker(4)
    tracker.track([4, 5, 7])
    tracker.resolve([5])
    with pytest.raises(ValueError, match="resolved"):
        tracker.track([offset])


def test_wrong_starts_are_refused() -> None:
    """A map of another offset, or a window no metadata can hold, is an error at once."""
    with pytest.raises(ValueError, match="not of 2"):
        Tracker(2, Map(1, 2, 1, SEQUENCE))
    with pytest.raises(ValueError, match="window"):
        Tracker(0, window=WINDOW + 1)


# --- the tracker: against a model ----------------------------------------------------------------------------------


@dataclass
class _Log:
    """What Kafka holds: records at ascending offsets with gaps between them, and the end after the last."""

    records: list[int] = field(default_factory=list)
    end: int = 0


class TrackerMachine(RuleBasedStateMachine):
    """A partition read, settled, aborted, restarted and trimmed; the model is a plain set of settled offsets."""

    WINDOW = 12

    def __init__(self) -> None:
        super().__init__()
        self.log = _Log()
        self.settled: set[int] = set()
        self.gone: set[int] = set()
        self.read = 0
        self.flying: set[int] = set()
        self.tracker = Tracker(0, window=self.WINDOW)
        self.commit = self.tracker.committable((), Sequence("m", 0))

    @rule(gaps=st.lists(st.integers(0, 3), min_size=1, max_size=6), trailing=st.integers(0, 3))
    def append(self, gaps: list[int], trailing: int) -> None:
        for gap in gaps:
            self.log.records.append(self.log.end + gap)
            self.log.end += gap + 1
        self.log.end += trailing

    @rule(count=st.integers(1, 8))
    def poll(self, count: int) -> None:
        for offset in [o for o in self.log.records if o >= self.read and o not in self.gone][:count]:
            wanted = self.tracker.wanted(offset)
            assert wanted == (offset not in self.settled), offset
            if wanted and not self.tracker.room(offset):
                assert offset - min(self.flying) >= self.WINDOW
                return
            if wanted:
                self.tracker.track((offset,))
                self.flying.add(offset)
            self.read = offset + 1

    @rule()
    def reach_the_end(self) -> None:
        if any(o >= self.read and o not in self.gone for o in self.log.records):
            return
        self.tracker.at_end(self.log.end)
        self.read = max(self.read, self.log.end)
        if not self.flying:
            assert self.tracker.frontier == self.log.end

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), lands=st.booleans())
    def settle(self, data: st.DataObject, lands: bool) -> None:
        settling = data.draw(st.sets(st.sampled_from(sorted(self.flying)), min_size=1))
        before = (self.tracker.frontier, self.tracker.in_flight)
        commit = self.tracker.committable(settling, Sequence("m", 1))
        assert (self.tracker.frontier, self.tracker.in_flight) == before
        if lands:
            self.tracker.resolve(settling)
            assert commit.frontier == self.tracker.frontier
            self.settled |= settling
            self.flying -= settling
            self.commit = commit

    @rule(trim=st.integers(0, 6))
    def restart(self, trim: int) -> None:
        frontier, metadata = self.commit
        found = decode_map(frontier, metadata)
        assert found is not None
        for offset in self.log.records:
            if found.resolved(offset):
                assert offset in self.settled or offset in self.gone, offset
            else:
                assert offset not in self.settled, offset
        self.gone |= {o for o in self.log.records if o < frontier + trim}
        self.tracker = Tracker(frontier, found, window=self.WINDOW)
        self.read, self.flying = frontier, set()

    @invariant()
    def frontier_is_below_everything_unsettled(self) -> None:
        if self.flying:
            assert self.tracker.frontier <= min(self.flying)
        assert self.tracker.in_flight == len(self.flying)
        unsettled = [o for o in self.log.records if o not in self.settled and o not in self.gone]
        assert not unsettled or self.tracker.frontier <= unsettled[0]


TrackerMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestTracker = TrackerMachine.TestCase
