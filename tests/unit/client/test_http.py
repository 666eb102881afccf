"""Retries of a client whose gateway hangs."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from farm.client import GatewayUnavailable
from farm.client.http import HttpSession

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


@contextmanager
def hanging_gateway(silent: int) -> Iterator[str]:
    """Yield the URL of a gateway that sends nothing on the first ``silent`` connections and then answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            held = [listener.accept()[0] for _ in range(silent)]
            with listener.accept()[0] as served:
                served.recv(4096)
                served.sendall(ANSWER)
            for one in held:
                one.close()

        server = Thread(target=serve, daemon=True)
        server.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.join()


def test_hanging_gateway_is_awaited_beyond_other_retries() -> None:
    told: list[str] = []
    with hanging_gateway(silent=1) as url:
        session = HttpSession(url, "", retry_s=0.01, hang_s=60.0, on_wait=lambda why: told.append(str(why)))
        assert session.send("GET", "/", answer_s=0.2).content == b"{}"
        session.close()
    assert len(told) == 1


def test_hanging_gateway_without_patience_is_an_error() -> None:
    with hanging_gateway(silent=1) as url:
        session = HttpSession(url, "", retry_s=0.0, hang_s=60.0, on_wait=lambda why: None)
        with pytest.raises(GatewayUnavailable, match="timed out"):
            session.send("GET", "/", answer_s=0.2)
        assert session.send("GET", "/").content == b"{}"
        session.close()
