"""A signature by a key in the format of Sigstore, and a statement of SLSA about how the artifacts were built.

`cosign verify-blob --key` reads the bundle; `openssl dgst -verify` reads the same signature without the bundle.
"""

import base64
import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

BUNDLE_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:ingero:make-release:v1"
SigningKey = ec.EllipticCurvePrivateKey


def new_key() -> SigningKey:
    """A key that only this process has."""
    return ec.generate_private_key(ec.SECP256R1())


def read_key(pem: bytes) -> SigningKey:
    """An unencrypted PEM key on the curve P-256; another one raises `ValueError`."""
    key = load_pem_private_key(pem, password=None)
    if not isinstance(key, SigningKey) or key.curve.name != "secp256r1":
        raise ValueError("a signing key is a PEM file with an elliptic curve key on P-256")
    return key


def public_pem(key: SigningKey) -> bytes:
    """The public half, as cosign and openssl read it."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def sign(key: SigningKey, content: bytes) -> bytes:
    """ECDSA with SHA-256, in DER."""
    return key.sign(content, ec.ECDSA(hashes.SHA256()))


def bundle(key: SigningKey, content: bytes, signature: bytes) -> str:
    """The signature as a bundle of Sigstore."""
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    document = {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {"publicKey": {"hint": base64.b64encode(sha256(der).digest()).decode()}},
        "messageSignature": {
            "messageDigest": {
                "algorithm": "SHA2_256",
                "digest": base64.b64encode(sha256(content).digest()).decode(),
            },
            "signature": base64.b64encode(signature).decode(),
        },
    }
    return json.dumps(document, indent=1) + "\n"


def provenance(
    subjects: Mapping[str, str], *, version: str, commit: str, epoch: int, builder: str, source: str
) -> dict[str, Any]:
    """The statement: `subjects` are names and SHA-256 of the artifacts; `builder` and `source` are URIs."""
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(subjects.items())],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"version": version},
                "internalParameters": {"SOURCE_DATE_EPOCH": epoch},
                "resolvedDependencies": [{"uri": source, "digest": {"gitCommit": commit}}],
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }
