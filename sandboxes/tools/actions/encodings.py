"""Detect the encoding of a text file, so that edits are written in the same encoding."""

import contextlib
import re

from sandboxes.tools.actions.text_edits import EditRefused, decode, encode

UTF_8 = "utf-8"
_COOKIE = re.compile(rb"coding[:=]\s*([-\w.]{1,32})")
_KNOWN = re.compile(
    r"(iso-?8859-?|latin-?|cp125|windows-125)\d{1,2}|koi8-[ru]|gbk|gb2312|gb18030|big5|euc-(jp|kr)|s(hift-)?jis"
)
_C1 = re.compile(rb"[\x80-\x9f]")
_BEYOND_ASCII = re.compile("[\x80-\ud7ff\ue000-\U0010ffff]")


def encoding_of(data: bytes) -> str:
    """Detect an encoding that reproduces ``data`` exactly.

    UTF-8 if ``data`` is ASCII or holds any UTF-8 sequence beyond ASCII. Otherwise the encoding that the first two lines
    name, as in Python sources; otherwise cp1252 or Latin-1, depending on the bytes used.
    """
    text = decode(data)
    if text.isascii() or _BEYOND_ASCII.search(text):
        return UTF_8
    cookie = _COOKIE.search(b"\n".join(data.split(b"\n", 2)[:2]))
    named = cookie[1].decode("ascii", "replace").lower().replace("_", "-") if cookie else ""
    guessed = "cp1252" if _C1.search(data) else "latin-1"
    for encoding in (named, guessed):
        if encoding == guessed or _KNOWN.fullmatch(encoding):
            with contextlib.suppress(UnicodeError, LookupError):
                if data.decode(encoding).encode(encoding) == data:
                    return encoding
    return UTF_8


def decoded(data: bytes) -> tuple[str, str]:
    """Return the text and its encoding."""
    encoding = encoding_of(data)
    return (decode(data) if encoding == UTF_8 else data.decode(encoding)), encoding


def encoded(text: str, encoding: str) -> bytes:
    """Encode ``text``. Raises EditRefused if the encoding lacks one of its characters."""
    if encoding == UTF_8:
        return encode(text)
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        char = text[error.start]
        message = (
            f"is no UTF-8 but reads as {encoding}, which has no {char!r}: leave it out or convert the file with iconv"
        )
        raise EditRefused(message) from None
