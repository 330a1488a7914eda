"""The signals a provider can give, by name: status, headers and body of each failure, and the odd answers' names."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_LIMITED: Final = (
    ("x-ratelimit-limit-requests", "500"),
    ("x-ratelimit-remaining-requests", "0"),
    ("x-ratelimit-reset-requests", "1s"),
    ("x-ratelimit-limit-tokens", "30000"),
    ("x-ratelimit-remaining-tokens", "0"),
    ("x-ratelimit-reset-tokens", "6m0s"),
)
_PAGE: Final = "<html><head><title>{0}</title></head><body><center><h1>{0}</h1></center><hr></body></html>"


@dataclass(frozen=True, slots=True)
class Signal:
    """One thing a provider says. `document` is the error body; None means the answer itself, perhaps bent."""

    status: int
    document: object = None
    headers: tuple[tuple[str, str], ...] = ()
    retry_after: bool = False
    html: str | None = None


def _openai(status: int, message: str, kind: str, code: str | int | None, *, param: str | None = None, retry_after: bool = False) -> Signal:
    document = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    limited = _LIMITED if retry_after and status == 429 else ()
    return Signal(status, document, limited, retry_after)


def _anthropic(status: int, kind: str, message: str, *, retry_after: bool = False, details: object = None) -> Signal:
    error: dict[str, object] = {"type": kind, "message": message}
    if details is not None:
        error["details"] = details
    return Signal(status, {"type": "error", "error": error}, (), retry_after)


def _quota(code: str, message: str) -> Signal:
    return _openai(429, message, "insufficient_quota", code)


_FILTERED: Final = {
    "hate": {"filtered": False, "severity": "safe"},
    "self_harm": {"filtered": False, "severity": "safe"},
    "sexual": {"filtered": False, "severity": "safe"},
    "violence": {"filtered": True, "severity": "medium"},
}

_RATE: Final = {
    "rate_limited": _openai(429, "Request limit reached. Retry later.", "requests", "rate_limit_exceeded", retry_after=True),
    "rate_limited_tokens": _openai(429, "Token limit reached.", "tokens", "rate_limit_exceeded", retry_after=True),
    "too_large_for_limit": _openai(
        429, "Request too large on tokens per min (TPM): Limit 30000, Requested 41000.", "tokens", "rate_limit_exceeded"
    ),
    "slow_down": _openai(429, "Your request rate rose too fast. Slow down.", "requests", "slow_down", retry_after=True),
    "overloaded_429": Signal(429, {"error": {"message": "Model is overloaded", "error_type": "overloaded"}}, retry_after=True),
    "anthropic_rate_limited": _anthropic(429, "rate_limit_error", "Rate limit exceeded.", retry_after=True),
}

_QUOTA: Final = {
    "insufficient_quota": _quota("insufficient_quota", "You exceeded your current quota."),
    "credit_balance_exhausted": _quota("credit_balance_exhausted", "The credit balance is used up."),
    "organization_spend_limit_exceeded": _quota("organization_spend_limit_exceeded", "The spend limit is reached."),
    "project_spend_limit_exceeded": _quota("project_spend_limit_exceeded", "The project's spend limit is reached."),
    "organization_usage_limit_exceeded": _quota("organization_usage_limit_exceeded", "The usage limit is reached."),
    "anthropic_spend_limit": _anthropic(
        429, "rate_limit_error", "Spend limit reached.", details={"error_code": "enforced_spend_limit_reached"}
    ),
    "anthropic_billing": _anthropic(402, "billing_error", "Payment is required."),
}

_SERVER: Final = {
    "server_error": _openai(500, "The server had an error while processing your request.", "server_error", None),
    "bad_gateway": _openai(502, "Bad gateway.", "server_error", None),
    "unavailable": _openai(503, "Service unavailable.", "server_error", None, retry_after=True),
    "gateway_timeout": _openai(504, "Gateway timed out.", "server_error", None),
    "server_is_overloaded": _openai(503, "Our servers are overloaded.", "service_unavailable_error", "server_is_overloaded"),
    "engine_overloaded": _openai(503, "That engine is currently overloaded.", "server_error", None),
    "ollama_busy": Signal(503, {"error": "server busy: maximum pending requests exceeded"}),
    "anthropic_overloaded": _anthropic(529, "overloaded_error", "Overloaded"),
    "anthropic_api_error": _anthropic(500, "api_error", "Internal server error"),
    "request_timeout": _openai(408, "The request timed out.", "timeout", None),
    "conflict": _openai(409, "The resource was changed by another request.", "conflict", None),
    "html_502": Signal(502, html=_PAGE.format("502 Bad Gateway")),
    "empty_500": Signal(500, html=""),
}

_REFUSED: Final = {
    "invalid_api_key": _openai(401, "Incorrect API key provided.", "invalid_request_error", "invalid_api_key"),
    "forbidden": _openai(403, "The project has no access to this model.", "invalid_request_error", "model_not_found"),
    "model_not_found": _openai(404, "The model does not exist.", "invalid_request_error", "model_not_found", param="model"),
    "vllm_model_not_found": _openai(404, "The model does not exist.", "NotFoundError", 404, param="model"),
    "invalid_request": _openai(400, "The request is invalid.", "invalid_request_error", None, param="messages"),
    "vllm_invalid_request": _openai(400, "The request is invalid.", "BadRequestError", 400),
    "context_length_exceeded": _openai(
        400,
        "This model's maximum context length is 8192 tokens, but the messages resulted in 9001 tokens.",
        "invalid_request_error",
        "context_length_exceeded",
        param="messages",
    ),
    "context_length_as_500": _openai(500, "This model's maximum context length is 8192 tokens; 9001 were requested.", "server_error", None),
    "anthropic_spend_limit_400": _anthropic(400, "invalid_request_error", "You have reached your specified API spend limit."),
    "azure_content_filter": Signal(
        400,
        {
            "error": {
                "message": "The response was filtered by the content management policy.",
                "type": None,
                "param": "prompt",
                "code": "content_filter",
                "status": 400,
                "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": _FILTERED},
            }
        },
    ),
    "content_policy_violation": _openai(
        400, "The request was rejected by the safety system.", "invalid_request_error", "content_policy_violation"
    ),
    "too_large": _openai(413, "The request is too large.", "invalid_request_error", "request_too_large"),
    "unprocessable": Signal(422, {"detail": [{"loc": ["body", "model"], "msg": "field required", "type": "missing"}]}),
    "detail_text": Signal(422, {"detail": "Unprocessable request"}),
    "error_text": Signal(400, {"error": "the request is invalid"}),
}

# Their bodies are made from the answer itself, in render.py.
_ODD_ANSWERS: Final = dict.fromkeys(
    (
        "answer",
        "no_choices",
        "null_choices",
        "finish_abort",
        "finish_length",
        "finish_content_filter",
        "nan_json",
        "truncated_json",
        "response_failed",
        "response_incomplete",
        "response_incomplete_filter",
        "response_queued",
        "response_in_progress",
    ),
    Signal(200),
)

_FALSE_SUCCESS: Final = {
    "error_in_200": _openai(200, "The engine failed.", "server_error", "server_error"),
    "html_200": Signal(200, html=_PAGE.format("Sign in")),
    "empty_200": Signal(200, html=""),
}

GROUPS: Final = MappingProxyType({
    "rate limits": _RATE,
    "quota": _QUOTA,
    "server": _SERVER,
    "refusals": _REFUSED,
    "answers": _ODD_ANSWERS,
    "false answers": _FALSE_SUCCESS,
})  # fmt: skip
SIGNALS: Final = MappingProxyType({name: signal for group in GROUPS.values() for name, signal in group.items()})

# What is asked for by the name of what it comes to: Headrace's own error classes, and HTTP's words.
SPOKEN_OF_AS: Final = MappingProxyType({
    "timeout": "hang",
    "connection": "reset",
    "overloaded": "server_is_overloaded",
    "quota_exhausted": "insufficient_quota",
    "auth": "invalid_api_key",
    "unauthorized": "invalid_api_key",
    "not_found": "model_not_found",
    "context_length": "context_length_exceeded",
    "content_policy": "content_policy_violation",
    "invalid_response": "truncated_json",
    "too_many_requests": "rate_limited",
    "service_unavailable": "unavailable",
    "internal_server_error": "server_error",
    "bad_request": "invalid_request",
    "400": "invalid_request",
    "401": "invalid_api_key",
    "403": "forbidden",
    "404": "model_not_found",
    "413": "too_large",
    "429": "rate_limited",
    "500": "server_error",
    "502": "bad_gateway",
    "503": "unavailable",
    "504": "gateway_timeout",
    "529": "anthropic_overloaded",
})  # fmt: skip
