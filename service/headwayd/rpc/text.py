"""Text that came from elsewhere (foreign clients, raw bytes), made fit for the wire."""

from __future__ import annotations


def clean_text(text: str) -> str:
    """`text` as valid UTF-8: what cannot be encoded (lone surrogates, from bytes that were no UTF-8) becomes `?`."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def cut_text(text: str, max_bytes: int) -> str:
    """`text` as valid UTF-8 of at most `max_bytes` bytes; what was cut ends in an ellipsis."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= max_bytes:
        return encoded.decode()
    return encoded[: max_bytes - len("…".encode())].decode("utf-8", "ignore") + "…"
