"""Protocols, versions, suites, groups, certificates and libraries by name, and which go together.

The engine has the same names (`ciphertoll channels`); which combinations its build can do, only it knows.
"""

from __future__ import annotations

from ciphertoll.model import SECURED, TWIN_OF

PROTOCOLS = (*SECURED, *dict.fromkeys(TWIN_OF.values()))

TLS_1_3, DTLS_1_3, DTLS_1_2 = "TLS 1.3", "DTLS 1.3", "DTLS 1.2"
VERSIONS = (TLS_1_3, DTLS_1_3, DTLS_1_2)
# Of each protocol, the default first.
VERSIONS_OF = {"https": (TLS_1_3,), "h3": (TLS_1_3,), "mqtts": (TLS_1_3,), "coaps": (DTLS_1_3, DTLS_1_2)}
LIBRARIES = ("rustls", "wolfssl", "dimpl")
LIBRARIES_OF = {"https": ("rustls",), "h3": ("rustls",), "mqtts": ("rustls",), "coaps": ("wolfssl", "dimpl")}

# Short name, name in published tables, suite of version 1.3, suite of version 1.2.
_SUITES = (
    ("aes128", "AES-128-GCM", "TLS_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
    ("aes256", "AES-256-GCM", "TLS_AES_256_GCM_SHA384", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
    (
        "chacha20",
        "ChaCha20-Poly1305",
        "TLS_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    ),
)
SUITE_NAMES = (*(row[0] for row in _SUITES), *(row[2] for row in _SUITES), *(row[3] for row in _SUITES))
SUITE_ALIASES = {row[1]: row[0] for row in _SUITES}

GROUPS = (
    "X25519",
    "P-256",
    "P-384",
    "X25519MLKEM768",
    "SecP256r1MLKEM768",
    "SecP384r1MLKEM1024",
    "MLKEM512",
    "MLKEM768",
    "MLKEM1024",
)
CERTIFICATES = ("ECDSA-P256", "ECDSA-P384", "Ed25519", "RSA-2048", "ML-DSA-44", "ML-DSA-65", "ML-DSA-87")


def suites_of(version: str) -> tuple[str, ...]:
    """The suites of a version, by their IANA names."""
    return tuple(row[3] if version == DTLS_1_2 else row[2] for row in _SUITES)


def suite_in(name: str, version: str) -> str | None:
    """The IANA name of `name` in `version`; None if that version does not have it."""
    for row in _SUITES:
        suite = row[3] if version == DTLS_1_2 else row[2]
        if name in (row[0], suite):
            return suite
    return None
