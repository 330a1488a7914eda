"""What a rule of the stub says: which calls it meets, and what they get. Models only: nothing is chosen here."""

from __future__ import annotations

import difflib
import math
from statistics import NormalDist
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from headrace.local.stub.signals import SIGNALS, SPOKEN_OF_AS

Share = Annotated[float, Field(ge=0, le=1)]
Millis = Annotated[float, Field(ge=0, le=3_600_000)]
Delivery = Literal["whole", "hang", "reset", "close", "cut", "cut_chunked", "drip", "close_idle", "interim", "endless", "bomb"]
RetryAfterForm = Literal["seconds", "http_date", "ms", "garbage", "none"]
DELIVERIES: tuple[str, ...] = get_args(Delivery)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Latency(_Strict):
    """Time before the answer: `fixed_ms`, or `uniform_ms: [low, high]`, or lognormal `median_ms` with `sigma`."""

    fixed_ms: Millis | None = None
    uniform_ms: tuple[Millis, Millis] | None = None
    median_ms: Annotated[float, Field(gt=0, le=3_600_000)] | None = None
    sigma: Annotated[float, Field(ge=0, le=3)] = 0.5

    @model_validator(mode="after")
    def _one_shape(self) -> Latency:
        shapes = [self.fixed_ms, self.uniform_ms, self.median_ms]
        if sum(shape is not None for shape in shapes) != 1:
            raise ValueError("give exactly one of fixed_ms, uniform_ms, median_ms")
        if self.uniform_ms is not None and self.uniform_ms[0] > self.uniform_ms[1]:
            raise ValueError("uniform_ms is [low, high]: low must not exceed high")
        return self

    def seconds(self, chance: float) -> float:
        """The delay in seconds at the quantile `chance`, in [0, 1)."""
        if self.fixed_ms is not None:
            return self.fixed_ms / 1000
        if self.uniform_ms is not None:
            low, high = self.uniform_ms
            return (low + (high - low) * chance) / 1000
        median = self.median_ms or 0.0
        deviate = NormalDist().inv_cdf(min(max(chance, 1e-9), 1 - 1e-9))
        return median * math.exp(self.sigma * deviate) / 1000


class Match(_Strict):
    """Which calls a rule meets: all that is given must hold; nothing given meets every call.

    `share` is a slice of the ids, drawn from (seed, request id) alone. Slices of successive rules lie side by side, so
    they never overlap, unless `offset` (0–1) says where this one begins. `attempts` and `first` count the calls
    seen by this server for that id, from 1. `from_s` and `until_s` are seconds since the start or the last reset.
    """

    share: Share | None = None
    offset: Share | None = None
    model: str | None = None
    endpoint: Literal["chat", "completions", "embeddings", "responses"] | None = None
    prompt_contains: Annotated[str, Field(min_length=1)] | None = None
    request_ids: frozenset[str] | None = None
    attempts: frozenset[Annotated[int, Field(ge=1)]] | None = None
    first: Annotated[int, Field(ge=1)] | None = None
    from_s: Annotated[float, Field(ge=0)] | None = None
    until_s: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Match:
        if self.offset is not None and self.share is None:
            raise ValueError("offset places a share: give share too")
        if self.attempts is not None and self.first is not None:
            raise ValueError("give attempts or first, not both")
        if self.from_s is not None and self.until_s is not None and self.from_s >= self.until_s:
            raise ValueError("from_s must be before until_s")
        return self

    def meets(self, *, request_id: str, call: int, model: str, endpoint: str, prompt: str, at_s: float) -> bool:
        """Whether everything but the share holds. `call` counts from 1, `at_s` is seconds since the start."""
        return (
            (self.first is None or call <= self.first)
            and (self.attempts is None or call in self.attempts)
            and (self.model is None or self.model == model)
            and (self.endpoint is None or self.endpoint == endpoint)
            and (self.request_ids is None or request_id in self.request_ids)
            and (self.from_s is None or at_s >= self.from_s)
            and (self.until_s is None or at_s < self.until_s)
            and (self.prompt_contains is None or self.prompt_contains in prompt)
        )


class Action(_Strict):
    """What a met call gets: a `signal` (what is said) by a `delivery` (how its bytes go). A bare name is either.

    Deliveries: `whole`; `hang` (no byte, ever); `reset` (RST); `close` (FIN before any byte); `cut` (the head and
    `cut_at` of the body, then FIN); `cut_chunked` (the same without a length, in chunks, the last one missing); `drip`
    (`drip_bytes` of the body every `drip_ms`); `close_idle` (whole, then FIN after `idle_ms`, unannounced); `interim` (so many
    `interims` of status 103, one every `drip_ms`, then whole; 0: nothing but these); `endless` (a body in chunks that never
    ends); `bomb` (gzip that nobody asked for: `bomb_mib` of blanks in a thousandth of that).
    """

    signal: str = "answer"
    delivery: Delivery = "whole"
    retry_after_s: Annotated[float, Field(ge=-1e9, le=1e9)] = 1.0
    retry_after: RetryAfterForm | None = None
    should_retry: bool | None = None
    latency: Latency | None = None
    status: Annotated[int, Field(ge=200, le=599)] | None = None
    message: str | None = None
    body: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    echo_prompt: bool = False
    answer_bytes: Annotated[int, Field(ge=1, le=64 * 1024 * 1024)] | None = None
    cut_at: Share = 0.5
    drip_ms: Annotated[float, Field(gt=0, le=3_600_000)] = 50.0
    drip_bytes: Annotated[int, Field(ge=1)] = 1
    idle_ms: Millis = 0.0
    interims: Annotated[int, Field(ge=0)] = 1
    bomb_mib: Annotated[int, Field(ge=1, le=1024)] = 64

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: object) -> object:
        if isinstance(value, str | int):  # a status code is no name, but it may be meant as one
            return {"delivery": value} if value in DELIVERIES else {"signal": str(value)}
        return value

    @field_validator("signal")
    @classmethod
    def _known(cls, value: str) -> str:
        if value in SIGNALS:
            return value
        spoken = SPOKEN_OF_AS.get(value.lower())
        near = [spoken] if spoken else difflib.get_close_matches(value, [*SIGNALS, *DELIVERIES], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`headrace stub-llm --help` lists them"
        raise ValueError(f"no signal is called {value[:64]!r}; {hint}")

    @field_validator("headers")
    @classmethod
    def _one_line(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not name.replace("-", "").isalnum() or not name.isascii() or not text.isprintable() or not text.isascii():
                raise ValueError(f"{name!r}: a header is a plain name and one line of printable ASCII")
        return value

    @property
    def label(self) -> str:
        """The name of this action in the log and the totals: the signal, and the delivery where it is not whole."""
        if self.delivery == "whole":
            return self.signal
        return self.delivery if self.signal == "answer" else f"{self.signal}+{self.delivery}"

    @property
    def answers(self) -> bool:
        """Whether a reply of ours ever leaves; a hang, a reset or a close says nothing."""
        return self.delivery not in ("hang", "reset", "close")


class Rule(_Strict):
    """One line of the script: calls that `match` meets get `action`. The first rule that meets a call decides."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w.:-]+$")]
    match: Match = Match()
    action: Action
