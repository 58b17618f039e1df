"""A certificate authority for a test: a server's certificate for 127.0.0.1, clients' for a role each."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Writes PEM files into a folder: ``<name>.crt`` and ``<name>.key``; its own is ``ca.crt``."""

    def __init__(self, folder: Path, name: str = "slotlake test CA") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        certificate = (
            self._begun(name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._write("ca", certificate, None)

    @property
    def root(self) -> Path:
        return self.folder / "ca.crt"

    def issue(self, common_name: str, address: str | None = None) -> tuple[Path, Path]:
        """A certificate and its key, for a server's address or a client's role."""
        key = ec.generate_private_key(ec.SECP256R1())
        begun = self._begun(common_name, key)
        if address is not None:
            named = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
            begun = begun.add_extension(named, critical=False)
        return self._write(common_name, begun.sign(self._key, hashes.SHA256()), key)

    def _begun(self, common_name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(_name(common_name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    def _write(
        self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey | None
    ) -> tuple[Path, Path]:
        places = (self.folder / f"{name}.crt", self.folder / f"{name}.key")
        places[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        if key is not None:
            places[1].touch(mode=0o600)
            places[1].write_bytes(
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                )
            )
        return places


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
