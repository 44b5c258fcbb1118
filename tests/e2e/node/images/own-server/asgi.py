"""A model API on FastAPI, which calls its model in the event loop (/loop) or in FastAPI's threads (/thread).

`?seconds=2` is a call of that time, which uses no processor. `?hang=1` is a call after which no call of this
process returns, as after a deadlock. At most CALLS calls (40) run at a time, the others wait.
"""

import os
import threading
import time

from fastapi import FastAPI

app = FastAPI()
hung = threading.Event()
model = threading.Semaphore(int(os.environ.get("CALLS", "40")))


def work(seconds: float, hang: bool) -> dict:
    if hang:
        hung.set()
    if hung.is_set():
        threading.Event().wait()
    with model:
        time.sleep(seconds)
    return {}


@app.get("/health")
async def health() -> dict:
    return {}


@app.api_route("/thread", methods=["GET", "POST"])
def in_thread(seconds: float = 0, hang: bool = False) -> dict:
    return work(seconds, hang)


@app.api_route("/loop", methods=["GET", "POST"])
async def in_loop(seconds: float = 0, hang: bool = False) -> dict:
    return work(seconds, hang)
