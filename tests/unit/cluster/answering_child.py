"""A process for the tests of ``KeptProcess``. It answers requests on the socket that it is given.

It gives no answer to as many requests as the file ``silent`` of its directory says. It adds a line to ``answered`` for
each answer.
"""

import os
import pickle
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from farm.cluster.restarted_process import READY

DIRECTORY: Path


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        silent = DIRECTORY / "silent"
        left = int(silent.read_text()) if silent.exists() else 0
        if left:
            silent.write_text(str(left - 1))
            self.rfile.read(1)  # until the caller leaves
            return
        with (DIRECTORY / "answered").open("a") as answered:
            answered.write("answered\n")
        self.send_response(204)
        self.end_headers()


if __name__ == "__main__":
    directory, descriptor = pickle.load(sys.stdin.buffer)
    DIRECTORY = directory
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=descriptor)
    os.write(1, READY)
    server.serve_forever()
