"""A certificate for one application, by which residents on other machines know the driver and encrypt what they send.

Java makes the key and signs: Python's standard library can use certificates, but not make them.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from pathlib import Path
from typing import Any

from mirror_pump.runtime.private_files import private_directory

_ECDSA_WITH_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")
"""The AlgorithmIdentifier (RFC 5758, section 3.2)."""
_NAME = bytes.fromhex("310f300d06035504030c06") + b"driver"
"""The only part of issuer and subject: a common name."""
_ALWAYS = b"\x17\x0d000101000000Z", b"\x18\x0f99991231235959Z"
_BITS = 256


def server_context(jvm: Any) -> tuple[ssl.SSLContext, bytes]:
    """A context for the driver's side of TLS, and its certificate in DER."""
    generator = jvm.java.security.KeyPairGenerator.getInstance("EC")
    generator.initialize(_BITS)
    pair = generator.generateKeyPair()

    def encoded(key: Any, form: str) -> bytes:
        # Classes of keys are internal to Java, so py4j cannot call their methods.
        spec = jvm.java.lang.Class.forName(f"java.security.spec.{form}")
        return bytes(jvm.java.security.KeyFactory.getInstance("EC").getKeySpec(key, spec).getEncoded())

    # RFC 5280, section 4.1. Version 1: it needs no extensions.
    to_sign = _sequence(
        _der(0x02, b"\x01"),
        _ECDSA_WITH_SHA256,
        _sequence(_NAME),
        _sequence(*_ALWAYS),
        _sequence(_NAME),
        encoded(pair.getPublic(), "X509EncodedKeySpec"),
    )
    signature = jvm.java.security.Signature.getInstance("SHA256withECDSA")
    signature.initSign(pair.getPrivate())
    signature.update(to_sign)
    certificate = _sequence(to_sign, _ECDSA_WITH_SHA256, _der(0x03, b"\0" + bytes(signature.sign())))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Python reads keys from files only.
    descriptor, path = tempfile.mkstemp(dir=private_directory())
    try:
        with os.fdopen(descriptor, "w") as file:
            key = encoded(pair.getPrivate(), "PKCS8EncodedKeySpec")
            file.write(_pem("PRIVATE KEY", key) + _pem("CERTIFICATE", certificate))
        context.load_cert_chain(path)
    finally:
        Path(path).unlink()
    return context, certificate


def _der(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < 0x80:
        return bytes([tag, length]) + content
    size = (length.bit_length() + 7) // 8
    return bytes([tag, 0x80 | size]) + length.to_bytes(size, "big") + content


def _sequence(*parts: bytes) -> bytes:
    return _der(0x30, b"".join(parts))


def _pem(label: str, content: bytes) -> str:
    return f"-----BEGIN {label}-----\n{base64.encodebytes(content).decode()}-----END {label}-----\n"
