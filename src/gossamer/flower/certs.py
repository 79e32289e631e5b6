"""Certificates and keys of a federation: a CA, a server, its operator, and a key for every node.

Nothing here replaces a CA that an organisation already has; any PEM files will do.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gossamer.wire import fingerprint

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.x509 import Certificate, GeneralName

CA, CA_KEY = "ca.crt", "ca.key"
SERVER, SERVER_KEY = "server.pem", "server.key"
OPERATOR, OPERATOR_PUBLIC = "operator", "operator.pub"
"""The key that signs apps; only its public half belongs on the server and on nodes."""
DAYS = 365
HERE = ("127.0.0.1", "localhost")


def node_key(folder: Path, index: int) -> Path:
    """The private key of a node; its public one has `.pub` behind it."""
    return folder / f"node-{index}"


def make(folder: Path, hosts: Sequence[str], nodes: int, days: int = DAYS) -> list[Path]:
    """Writes a CA, a server certificate, and keys for the operator and nodes; keeps what is there.

    Only the owner can read what is secret. The certificate is also for the server's own machine.
    A folder that has a CA gets keys for more nodes; an error if its certificate lacks a host.
    """
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    written: list[Path] = []
    if not (folder / CA).exists():
        written += _authority(folder, list(dict.fromkeys([*hosts, *HERE])), days)
    elif (folder / SERVER).exists() and (missing := set(hosts) - names(folder / SERVER)):
        raise ValueError(
            f"{folder / SERVER} is not for {', '.join(sorted(missing))}; make certificates in "
            "another folder, and give nodes the new ones"
        )
    if not (folder / OPERATOR_PUBLIC).exists():
        written += _key_pair(folder / OPERATOR, ed25519.Ed25519PrivateKey.generate())
    for index in range(nodes):
        if not node_key(folder, index).exists():
            written += _key_pair(node_key(folder, index), ec.generate_private_key(ec.SECP384R1()))
    return written


def names(certificate: Path) -> set[str]:
    """The hosts that a certificate is for."""
    from cryptography import x509

    loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(each.value) for each in names}


def short(public: Path) -> str:
    """A name for a public key, whatever its file is called."""
    return fingerprint(public.read_bytes().strip())


def _authority(folder: Path, hosts: Sequence[str], days: int) -> list[Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import ExtendedKeyUsageOID

    begins = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    ends = begins + datetime.timedelta(days=days)

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    def certificate(
        subject: str, key: EllipticCurvePrivateKey, signer: EllipticCurvePrivateKey, ca: bool
    ) -> Certificate:
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=ca,
            crl_sign=ca,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("Gossamer federation"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca, 0 if ca else None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
                critical=False,
            )
        )
        if not ca:
            names = x509.SubjectAlternativeName([_name(host) for host in hosts])
            server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
            builder = builder.add_extension(names, critical=False)
            builder = builder.add_extension(server, critical=False)
        return builder.sign(signer, hashes.SHA256())

    root, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    public = {
        SERVER: certificate(hosts[0], server, root, ca=False),
        CA: certificate("Gossamer federation", root, root, ca=True),  # last: it says all is there
    }
    _secret(folder / CA_KEY, _pem(root))
    _secret(folder / SERVER_KEY, _pem(server))
    for name, each in public.items():
        (folder / name).write_bytes(each.public_bytes(Encoding.PEM))
    return [folder / name for name in (CA, CA_KEY, SERVER, SERVER_KEY)]


def _key_pair(path: Path, key: EllipticCurvePrivateKey | Ed25519PrivateKey) -> list[Path]:
    """Writes a private key, and the public one beside it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = path.with_name(path.name + ".pub")
    encoded = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    public.write_bytes(encoded + b"\n")
    _secret(path, _pem(key, openssh=True))
    return [path, public]


def _name(host: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: EllipticCurvePrivateKey | Ed25519PrivateKey, openssh: bool = False) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    form = PrivateFormat.OpenSSH if openssh else PrivateFormat.PKCS8
    data: bytes = key.private_bytes(Encoding.PEM, form, NoEncryption())
    return data


def _secret(path: Path, data: bytes) -> None:
    """Writes a file that nobody else could read at any moment."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
