"""Where Azure keeps an endpoint, whatever was given of its address, and whatever a model is called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from headrace.config import ProviderSettings
from headrace.llm.azure import path_of, root_of
from headrace.llm.endpoint import Endpoint

CHAT = "/v1/chat/completions"


def azure(version: str | None = None, **fields: object) -> ProviderSettings:
    return ProviderSettings.model_validate(
        {"name": "az", "kind": "azure", "base_url": "https://r.openai.azure.com", "api_version": version, **fields}
    )


@pytest.mark.parametrize(
    "given_url", ["https://r", "https://r/", "https://r/openai", "https://r/openai/", "https://r/openai/v1", "https://r/openai/v1/"]
)
def test_the_resource_is_found_in_whatever_was_given(given_url: str) -> None:
    """As the portal, the old and the new clients have it."""
    assert root_of(given_url) == "https://r"


@pytest.mark.parametrize(
    ("version", "endpoint", "path"),
    [
        (None, CHAT, "/openai/v1/chat/completions"),
        ("v1", "/v1/responses", "/openai/v1/responses"),
        ("preview", CHAT, "/openai/v1/chat/completions?api-version=preview"),
        ("2024-10-21", CHAT, "/openai/deployments/gpt%204o/chat/completions?api-version=2024-10-21"),
        ("2024-10-21", "/v1/embeddings", "/openai/deployments/gpt%204o/embeddings?api-version=2024-10-21"),
        ("2025-03-01-preview", "/v1/responses", "/openai/responses?api-version=2025-03-01-preview"),
    ],
)
def test_paths(version: str | None, endpoint: str, path: str) -> None:
    """A dated version names the deployment in the path; v1 needs neither."""
    assert path_of(azure(version), endpoint, "gpt 4o") == path


@given(st.text(min_size=1, max_size=50).filter(lambda text: text.encode("utf-8", "ignore").decode() == text))
def test_no_model_leads_elsewhere(model: str) -> None:
    """A caller's name for a model is one segment of the path: no other host, path, query or fragment."""
    url = URL(root_of("https://r.openai.azure.com") + str(path_of(azure("2024-10-21"), CHAT, model)), encoded=True)
    assert url.host == "r.openai.azure.com"
    assert url.raw_path.startswith("/openai/deployments/")
    assert url.raw_path.count("/") == 5
    assert "/./" not in url.raw_path
    assert "/../" not in url.raw_path
    assert (url.raw_query_string, url.raw_fragment) == ("api-version=2024-10-21", "")


@pytest.mark.parametrize(("auth", "header"), [(None, "api-key"), ("bearer", "Authorization"), ("api-key", "api-key")])
def test_keys_and_tokens(auth: str | None, header: str) -> None:
    """A key in `api-key`; an Entra token, from a file that is renewed, as a bearer."""
    provider = azure(api_key="sk-azure-key", auth=auth)
    sent = Endpoint(provider, provider.servers()[0], None).key.headers  # type: ignore[arg-type]
    assert {"api-key", "Authorization"} & sent.keys() == {header}
