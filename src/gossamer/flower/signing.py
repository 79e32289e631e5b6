"""The operator's signature on an app: nodes run what it covers, and nothing else.

SuperNodes verify apps against the keys of trusted entities. Flower's own way to them leads through
its hub; here the operator signs the app's bytes, the signature lies beside the project, and the
server hands both to nodes. The server needs no private key for that, so whoever takes over its
machine cannot make nodes run another app.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from gossamer.engine.checkpoint import write_atomically
from gossamer.flower import commands
from gossamer.wire import fingerprint

FILE = "signature.json"
"""What a project calls its signature; it is not part of the app."""


@dataclass(frozen=True)
class Signature:
    """A signature on the bytes of an app."""

    app: str
    """Their SHA-256."""
    key: str
    """The name of the operator's key."""
    signed_at: int
    signature: str


def key_name(public: Path) -> str:
    """A name for a public key that is the same wherever the key is."""
    kind, key = public.read_text(encoding="ascii").split()[:2]
    return f"operator-{fingerprint(f'{kind} {key}'.encode())}"


def packed(project: Path) -> bytes:
    """The app as `flwr run` packs it, byte for byte.

    Raises:
        ValueError: Flower does not take it for an app.
    """
    with tempfile.TemporaryDirectory(prefix="gossamer-") as name:
        folder = Path(name)
        done = subprocess.run(
            commands.build(project),
            cwd=folder,
            env=commands.environment(folder),
            capture_output=True,
            text=True,
            check=False,
        )
        found = list(folder.glob("*.fab"))
        if done.returncode or len(found) != 1:
            raise ValueError(f"{project} cannot be packed: {(done.stdout + done.stderr).strip()}")
        return found[0].read_bytes()


def sign(project: Path, private: Path) -> Signature:
    """Signs a project's app; the signature is kept beside it.

    Args:
        project: The project's folder.
        private: The operator's private key; the public one is beside it.
    """
    from flwr.supercore.primitives.asymmetric_ed25519 import (
        create_message_to_sign,
        load_private_key,
        sign_message,
    )

    digest, now = hashlib.sha256(packed(project)), int(time.time())
    proof = sign_message(load_private_key(private), create_message_to_sign(digest.digest(), now))
    text = base64.urlsafe_b64encode(proof).decode("ascii")
    made = Signature(
        digest.hexdigest(), key_name(private.with_name(private.name + ".pub")), now, text
    )
    write_atomically(project / FILE, json.dumps(asdict(made), indent=1).encode())
    return made


def read(project: Path, public: Path) -> Signature:
    """The signature of a project.

    Raises:
        ValueError: There is none, or it does not cover the app as it is now.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric_ed25519 import (
        create_message_to_sign,
        decode_base64url,
        verify_signature,
    )

    how = f"sign it where the operator's key is: gossamer flower sign {project} --key operator"
    if not (project / FILE).exists():
        raise ValueError(f"{project} is not signed, so nodes would refuse it; {how}")
    try:
        found = Signature(**json.loads((project / FILE).read_bytes()))
        proof = decode_base64url(found.signature)
    except (ValueError, TypeError) as damage:
        raise ValueError(f"{project / FILE} is damaged ({damage}); {how}") from None
    digest = hashlib.sha256(packed(project)).digest()
    message = create_message_to_sign(digest, found.signed_at)
    if found.app != digest.hex() or found.key != key_name(public):
        raise ValueError(
            f"{project / FILE} is for another app or of another key: the project was changed after "
            f"it was signed, or packed by another version of Flower; {how}"
        )
    key = load_ssh_public_key(public.read_bytes())
    if not isinstance(key, Ed25519PublicKey) or not verify_signature(key, message, proof):
        raise ValueError(f"{project / FILE} is not valid; {how}")
    return found
