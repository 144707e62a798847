"""Certificates by which server and clients know each other: one authority of the federation signs them all.

`deploy keys DIR` writes:

    DIR/authority/      the authority's key: it makes new clients, and stays with the operator
    DIR/server/         for the server, with clients.json: the clients that may join, and their certificates' digests
    DIR/clients/NAME/   for the client of this name

Each folder has ca.pem (the authority), certificate.pem and key.pem. A client's name is that in its certificate.
"""

import datetime
import ipaddress
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedem_lightning.errors import UserError, require
from fedem_lightning.records.files import replacing

CA, CERTIFICATE, KEY, CLIENTS = "ca.pem", "certificate.pem", "key.pem", "clients.json"
LONGEST_NAME = 64
"""Characters that a certificate's name may have."""


class Keys(NamedTuple):
    """The content of a server's or a client's folder, PEM."""

    authority: bytes
    certificate: bytes
    key: bytes

    @classmethod
    def read(cls, folder: Path) -> "Keys":
        """Reads a folder that `make_keys` has written.

        Raises:
            UserError: a file is missing.

        """
        missing = [name for name in (CA, CERTIFICATE, KEY) if not (folder / name).is_file()]
        require(not missing, f"--keys: {folder} lacks {', '.join(missing)}; python -m fedem_lightning.deploy keys")
        return cls(*((folder / name).read_bytes() for name in (CA, CERTIFICATE, KEY)))

    @property
    def name(self) -> str:
        """The name in the certificate."""
        try:
            return name_of(self.certificate)
        except (ValueError, IndexError):
            raise UserError(f"--keys: {CERTIFICATE} is no certificate with a name") from None


def make_keys(folder: Path, hosts: Sequence[str], clients: Sequence[str], days: int, renew: bool) -> list[Path]:
    """Writes the authority if there is none yet, and the folders of the server and of clients.

    Args:
        folder: where they go; later calls add clients to it.
        hosts: names and addresses under which clients reach the server; empty: the server has its folder already.
        clients: names of clients.
        days: for which the certificates are valid.
        renew: whether a folder that is there gets a new certificate. The old one of a client is refused from then on.

    Returns:
        The folders that were written.

    Raises:
        UserError: a folder is there already, or a name is none of a folder; nothing was written.

    """
    server, targets = folder / "server", {name: folder / "clients" / name for name in clients}
    for name, target in targets.items():
        plain = Path(name).name == name and name not in ("", ".", "..") and len(name) <= LONGEST_NAME
        require(plain and name.isprintable(), f"--client: {name!r} is no name of 1 to {LONGEST_NAME} characters")
        require(renew or not target.exists(), f"{target} is there already; --renew gives it a new certificate")
    require(renew or not hosts or not server.exists(), f"{server} is there already; --renew gives it a new certificate")
    require(bool(hosts) or server.exists(), "--server: name the hosts under which clients reach the server")
    authority = _authority(folder / "authority", days)
    written = []
    if hosts:
        _write(server, authority, _signed(authority, hosts[0], days, hosts))
        written.append(server)
    known = allowed(server) if (server / CLIENTS).is_file() else {}
    for name, target in targets.items():
        pair = _signed(authority, name, days)
        _write(target, authority, pair)
        known[name] = digest_of(pair[0])
        written.append(target)
    _save(server, known)  # last: a client on the list has its files
    return written


def remove_clients(folder: Path, names: Sequence[str]) -> None:
    """Takes clients off the list of those that may join; a server that runs refuses them from then on.

    Raises:
        UserError: one is not on the list; none was removed.

    """
    known = allowed(folder / "server")
    for name in names:
        require(name in known, f"--remove: {folder / 'server' / CLIENTS} does not have {name!r}")
    _save(folder / "server", {name: digest for name, digest in known.items() if name not in names})


def allowed(folder: Path) -> dict[str, str]:
    """The clients that a server lets in: the digest of each one's certificate, by name.

    Raises:
        UserError: the list is missing or broken.

    """
    path = folder / CLIENTS
    require(path.is_file(), f"--keys: {folder} lacks {CLIENTS}, the list of the clients that may join")
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(f"{path} is no JSON") from None
    fits = isinstance(found, dict) and all(isinstance(value, str) for value in found.values())
    require(fits, f"{path}: expected the digests of certificates by the clients' names")
    return dict(found)


def _save(server: Path, known: dict[str, str]) -> None:
    with replacing(server / CLIENTS) as path:
        path.write_text(json.dumps(known, indent=1, ensure_ascii=False), encoding="utf-8")


def name_of(certificate: bytes) -> str:
    """The name in a certificate, PEM."""
    found = x509.load_pem_x509_certificate(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value)


def digest_of(certificate: bytes) -> str:
    """The SHA-256 of a certificate, PEM."""
    return x509.load_pem_x509_certificate(certificate).fingerprint(hashes.SHA256()).hex()


def _authority(folder: Path, days: int) -> tuple[bytes, bytes]:
    """The authority's certificate and key; new ones if there are none."""
    if folder.exists():
        return Keys.read(folder)[1:]
    pair = _signed(None, "fedem-lightning federation", 2 * days)
    _write(folder, pair, pair)
    return pair


def _signed(
    authority: tuple[bytes, bytes] | None, name: str, days: int, hosts: Sequence[str] = ()
) -> tuple[bytes, bytes]:
    """A certificate and its key, PEM: of the authority (None), of a server under `hosts`, or of a client."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer = key if authority is None else serialization.load_pem_private_key(authority[1], None)
    issuer = subject if authority is None else x509.load_pem_x509_certificate(authority[0]).subject
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
    )
    if authority is not None:
        usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    certificate = builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    form = serialization.PrivateFormat.PKCS8
    return certificate, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(folder: Path, authority: tuple[bytes, bytes], pair: tuple[bytes, bytes]) -> None:
    """Writes a folder; nobody but its owner reads the key."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in ((CA, authority[0]), (CERTIFICATE, pair[0]), (KEY, pair[1])):
        with replacing(folder / name) as path:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if name == KEY else 0o644)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
