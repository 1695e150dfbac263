"""Certificates and keys that cannot be used are named, with the reason, before anything listens."""

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ingero_http.tls import CertificateError, server_context
from ingero_kit.flags import exit_with_reason
from ingero_kit.settings import SettingsError
from ingero_kit.tls import ClientTls, ServerTls


@pytest.fixture
def files(tmp_path: Path) -> ServerTls:
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    own.private_key_pem.write_to_path(tmp_path / "tls.key")
    own.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    return ServerTls(
        cert_file=tmp_path / "tls.crt", key_file=tmp_path / "tls.key", client_ca_file=tmp_path / "ca.crt"
    )


def private_key(passphrase: bytes = b"") -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption(),
    )  # fmt: skip


WRONG = [
    pytest.param("tls.crt", None, "tls.crt: the TLS file cannot be read: No such file or directory", id="no chain"),
    pytest.param("tls.key", None, "tls.key: the TLS file cannot be read: No such file or directory", id="no key"),
    pytest.param("ca.crt", None, "ca.crt: the TLS file cannot be read: No such file or directory", id="no authority"),
    pytest.param("tls.crt", b"hi", "tls.crt: no certificate in PEM", id="no PEM"),
    pytest.param("tls.key", b"hi", "tls.key: no private key in PEM", id="no PEM in the key"),
    pytest.param("ca.crt", b"hi", "ca.crt: no certificate in PEM", id="no PEM in the authority"),
    pytest.param("tls.key", private_key(), "tls.key: the private key does not belong to the first certificate of ",
                 id="another key"),
    pytest.param("tls.key", private_key(b"word"), "tls.key: the private key has a passphrase; remove it",
                 id="a passphrase"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "words"), WRONG)
def test_the_file_at_fault_is_named(files: ServerTls, name: str, content: bytes | None, words: str) -> None:
    file = files.cert_file.parent / name
    file.unlink() if content is None else file.write_bytes(content)

    with pytest.raises(CertificateError, match=str(file.parent / words)):
        server_context(files)
    with pytest.raises(SettingsError, match=str(file.parent / words)):
        ClientTls(ca_file=files.client_ca_file, cert_file=files.cert_file, key_file=files.key_file).context()


def test_files_that_fit_are_used(files: ServerTls) -> None:
    assert server_context(files).verify_mode is ssl.CERT_REQUIRED


def test_a_program_whose_tls_files_are_wrong_ends_as_with_wrong_settings(
    files: ServerTls, capsys: pytest.CaptureFixture[str]
) -> None:
    files.key_file.unlink()
    with pytest.raises(SystemExit) as ended, exit_with_reason("ingero-fleet", OSError):
        server_context(files)

    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"ingero-fleet: {files.key_file}: ")
