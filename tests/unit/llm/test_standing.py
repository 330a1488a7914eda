"""The names endpoints are shown under: finite, unique, and without anything of an address that may be secret."""

from __future__ import annotations

from pydantic import SecretStr

from headrace.config import EjectionSettings, EndpointSettings, HealthSettings, ProviderSettings
from headrace.llm import Llm
from headrace.llm.standing import address_of, standing_of
from headrace.vitals import EndpointSample


def test_an_address_is_host_and_port() -> None:
    """No user, password, path or query: any of them may be a secret, or a tenant's name."""
    assert address_of("https://user:hidden@Models.example/tenants/hidden/v1?key=hidden#hidden") == "models.example:443"
    assert address_of("http://[::1]:8000/v1") == "[::1]:8000"
    assert address_of("http://127.0.0.1/v1") == "127.0.0.1:80"


async def test_endpoints_are_told_apart_also_at_one_address() -> None:
    """Two deployments behind one gateway are two names, in the order of the configuration; another provider's begin anew."""
    twice = tuple(EndpointSettings(base_url=f"http://gate.example/{name}/v1") for name in ("a", "b"))
    providers = (
        ProviderSettings(name="p", endpoints=twice, default_model="m", ejection=EjectionSettings(), health=HealthSettings(path="/health")),
        ProviderSettings(name="q", base_url="http://gate.example/v1", api_key=SecretStr("sk-hidden"), default_model="m"),
    )
    llm = Llm(providers, pool=2, now_ms=lambda: 0)
    try:
        assert standing_of(llm.endpoints()) == (
            EndpointSample("p", "gate.example:80", healthy=True),
            EndpointSample("p", "gate.example:80#2", healthy=True),
            EndpointSample("q", "gate.example:80"),
        )
    finally:
        await llm.close()
