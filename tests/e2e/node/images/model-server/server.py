"""A model API as they are written: a few worker threads, and a pool of connections to where its features are.

Each prediction takes two connections, one after the other, and waits for each as long as it takes.
At a steady rate that goes well for ever. Under overload every worker holds one connection and waits for its
second: from then on nothing is answered any more, not even the health check, which the same workers answer.

LOAD    seconds from the start to the first answer (0)
WORKERS threads that answer requests (4)
POOL    connections in the pool (as many as workers); with twice as many, overload is slow but ends
WORK    seconds that a prediction holds each connection (0.05)
PORT    where it listens (8000)

GET /burn starts further processes that compute for as long as the container runs.

At SIGTERM it ends at once, as most such servers do, without answering what it has begun.
"""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler

LOAD = float(os.environ.get("LOAD", "0"))
WORKERS = int(os.environ.get("WORKERS", "4"))
POOL = int(os.environ.get("POOL", WORKERS))
WORK = float(os.environ.get("WORK", "0.05"))
BURNERS = 8
PORT = int(os.environ.get("PORT", "8000"))

connections = threading.BoundedSemaphore(POOL)


def predict() -> None:
    """Read the features, then, still holding their connection, what they refer to."""
    with connections:
        time.sleep(WORK)
        with connections:
            time.sleep(WORK)


class Handler(BaseHTTPRequestHandler):
    """One request a connection."""

    timeout = 10

    def do_GET(self) -> None:
        if self.path == "/predict":
            predict()
        if self.path == "/burn":
            for _ in range(BURNERS):
                subprocess.Popen([sys.executable, "-c", "while True: pass"])
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        predict()
        self._answer()

    def _answer(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, format: str, *arguments: object) -> None:
        print(self.log_date_time_string(), self.client_address[0], format % arguments, flush=True)


def work(accepted: queue.Queue) -> None:
    """Answer one connection after the other."""
    while True:
        client, address = accepted.get()
        try:
            Handler(client, address, None)
        except OSError:
            pass  # it hung up
        finally:
            client.close()


def main() -> None:
    def stop(*_: object) -> None:
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    time.sleep(LOAD)
    accepted: queue.Queue = queue.Queue()
    for _ in range(WORKERS):
        threading.Thread(target=work, args=(accepted,), daemon=True).start()
    listener = socket.create_server(("", PORT), backlog=1024)
    print("serving on", PORT, *sys.argv[1:], flush=True)
    while True:
        accepted.put(listener.accept())


if __name__ == "__main__":
    main()
