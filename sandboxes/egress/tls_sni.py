"""The name that a TLS client asks for: it says it first, in the clear, and hosts that share an address go by it."""

import ssl
from enum import Enum


class HelloState(Enum):
    """What is no name."""

    UNFINISHED = "half a greeting"
    NAMELESS = "TLS without a name"
    NOT_TLS = "something else"


class SniParser:
    """OpenSSL reads the message as a server would, and is stopped before it answers."""

    def __init__(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = self._stop
        self._bytes = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._bytes, ssl.MemoryBIO(), server_side=True)
        self._found: str | HelloState = HelloState.NOT_TLS

    def feed(self, data: bytes) -> str | HelloState:
        """The name as sent. After any answer but UNFINISHED nothing more may be fed."""
        self._bytes.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return HelloState.UNFINISHED
        except ssl.SSLError:
            pass
        return self._found

    def _stop(self, _tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int:
        self._found = name or HelloState.NAMELESS
        return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
