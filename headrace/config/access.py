"""What to change in the configuration when the broker cannot be reached or does not let us in, told from its or the client's words."""

from __future__ import annotations

# Words of librdkafka, OpenSSL and the broker, as tried against a broker with each kind of listener. The first that is found counts.
_REMEDIES = (
    ("No provider for SASL mechanism", "set sasl.mechanism in kafka.config to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"),
    ("the client refuses its configuration", "correct kafka.config (HEADRACE_KAFKA_CONFIG)"),
    ("authorization failed", "grant the right: `headrace topics acls` prints the smallest there are"),
    ("nsupported SASL mechanism", "set sasl.mechanism in kafka.config to one that the listener has"),
    ("uthentication", "check sasl.mechanism, sasl.username and sasl.password in kafka.config (HEADRACE_KAFKA_CONFIG)"),
    (
        "certificate verify failed",
        "name the CA that signed the broker's certificate as ssl.ca.location in kafka.config, and use the name it was issued to",
    ),
    ("certificate required", "the listener wants a certificate: set ssl.certificate.location and ssl.key.location in kafka.config"),
    ("alert", "the listener does not take our certificate: check ssl.certificate.location and ssl.key.location in kafka.config"),
    ("PLAINTEXT broker listener", "the listener speaks no TLS: correct security.protocol in kafka.config, or the port in kafka.bootstrap"),
    ("SSL handshake", "check security.protocol and the ssl.* properties in kafka.config, and the port in kafka.bootstrap"),
    ("token", "check kafka.oauth_token, or the sasl.oauthbearer.* properties in kafka.config"),
    ("Failed to resolve", "correct the host name in kafka.bootstrap (HEADRACE_KAFKA_BOOTSTRAP)"),
)
_SILENT = ("no answer", "imed out")


def remedy_for(reason: str, *, secured: bool) -> str:
    """The remedy, by field. `secured`: kafka.config names a security.protocol."""
    for words, remedy in _REMEDIES:
        if words in reason:
            return remedy
    asked = "Is it running, and is HEADRACE_KAFKA_BOOTSTRAP right?"
    if any(words in reason for words in _SILENT) and not secured:
        asked += " A listener with TLS or SASL does not answer either: then set security.protocol in kafka.config (HEADRACE_KAFKA_CONFIG)."
    return asked
