"""The model API of asgi.py on Flask."""

import os
import threading
import time

from flask import Flask, request

app = Flask(__name__)
hung = threading.Event()
model = threading.Semaphore(int(os.environ.get("CALLS", "40")))


@app.route("/health")
def health() -> dict:
    return {}


@app.route("/predict", methods=["GET", "POST"])
def predict() -> dict:
    if request.args.get("hang"):
        hung.set()
    if hung.is_set():
        threading.Event().wait()
    with model:
        time.sleep(float(request.args.get("seconds", 0)))
    return {}
