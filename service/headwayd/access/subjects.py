"""Whom a certificate is for."""

from __future__ import annotations

from collections.abc import Sequence

from cryptography import x509
from cryptography.x509.oid import NameOID


def subjects_of(certificate: x509.Certificate) -> Sequence[str]:
    """The names that a certificate is for: DNS names and URIs, or the common name if it has none of them."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        found: list[str] = []
    else:
        found = [*names.get_values_for_type(x509.DNSName), *names.get_values_for_type(x509.UniformResourceIdentifier)]
    return found or [str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
