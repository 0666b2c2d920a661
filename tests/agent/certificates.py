"""Certificates made for one test: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass
class Authority:
    """Signs certificates for names and addresses."""

    folder: Path
    name: str = "test authority"
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    def __post_init__(self) -> None:
        self.ca_file = self.folder / f"{self.name.replace(' ', '-')}.pem"
        self.ca_file.write_bytes(self._signed(self.name, self.key, ca=True))

    def issue(self, *names: str, file: str = "leaf", expired: bool = False) -> tuple[Path, Path]:
        """Give a certificate for these names, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        pair = self.folder / f"{file}.crt", self.folder / f"{file}.key"
        pair[0].write_bytes(self._signed(names[0], key, names=names, expired=expired))
        pair[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def _signed(
        self,
        subject: str,
        key: ec.EllipticCurvePrivateKey,
        *,
        names: tuple[str, ...] = (),
        ca: bool = False,
        expired: bool = False,
    ) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(subject))
            .issuer_name(_name(self.name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 3 * DAY)
            .not_valid_after(now - DAY if expired else now + DAY)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False
            )
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
