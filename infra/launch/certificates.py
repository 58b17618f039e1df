"""The system's certificate authorities, for programs whose own list lacks a company's authority."""

from __future__ import annotations

import os
from pathlib import Path

_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine, Arch
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora, RHEL
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",
)


def system_bundle() -> str | None:
    """Return the path of ``SSL_CERT_FILE`` or of the system's PEM bundle; None if there is none."""
    for candidate in (os.environ.get("SSL_CERT_FILE", ""), *_BUNDLES):
        if candidate and Path(candidate).is_file():
            return candidate
    return None
