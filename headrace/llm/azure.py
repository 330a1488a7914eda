"""Where Azure keeps an endpoint: a deployment is named in the path, and the API's version in the query; the `v1` API needs neither.

Sources: Azure OpenAI's REST reference (data plane) and the API version lifecycle page.
"""

from __future__ import annotations

from urllib.parse import quote

from headrace.config import ProviderSettings

_V1 = (None, "v1")
_PREVIEW = ("preview", "latest")
# What is asked of a deployment by its path; anything else names it in the body.
_OF_DEPLOYMENTS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})


def root_of(base_url: str) -> str:
    """The resource's address, however much of the path was given with it."""
    url = base_url.rstrip("/")
    for ending in ("/openai/v1", "/openai"):
        url = url.removesuffix(ending)
    return url


def path_of(settings: ProviderSettings, endpoint: str, model: str) -> str | None:
    """The path and query of a call below `root_of`; None where the OpenAI path applies, or the model's name cannot be part of one."""
    if settings.kind != "azure":
        return None
    version, rest = settings.api_version, endpoint.removeprefix("/v1")
    if version in _V1:
        return f"/openai/v1{rest}"
    if version in _PREVIEW:
        return f"/openai/v1{rest}?api-version={version}"
    if endpoint in _OF_DEPLOYMENTS:
        return f"/openai/deployments/{_segment(model)}{rest}?api-version={version}"
    return f"/openai{rest}?api-version={version}"


def _segment(model: str) -> str:
    # a segment of dots alone would lead somewhere else; models' names are the callers' to choose
    return quote(model, safe="") if set(model) - {"."} else model.replace(".", "%252E")
