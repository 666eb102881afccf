"""Read the server name (SNI) from a TLS client hello, which is sent in the clear."""

import ssl
from enum import Enum


class HelloState(Enum):
    """The result of parsing a client hello that gives no name."""

    UNFINISHED = "half a greeting"
    NAMELESS = "TLS without a name"
    NOT_TLS = "something else"


class SniParser:
    """Parses a client hello by OpenSSL in the server role, stopped before it answers."""

    def __init__(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = self._stop
        self._bytes = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._bytes, ssl.MemoryBIO(), server_side=True)
        self._result: str | HelloState = HelloState.NOT_TLS

    def feed(self, data: bytes) -> str | HelloState:
        """Parse more bytes and return the name as sent, or a state. Only after UNFINISHED may more bytes be fed."""
        self._bytes.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return HelloState.UNFINISHED
        except ssl.SSLError:
            pass
        return self._result

    def _stop(self, _tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int:
        self._result = name or HelloState.NAMELESS
        return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
