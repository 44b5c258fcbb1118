"""Whether a vLLM server makes progress: kubelet runs this in the server's container, as its liveness probe.

`python3 -I -S -c <this text> PORT http|https [VARIABLE ...]`; the variables may hold the API key. It exits
with 100 only if the server is known to hang: /health does not answer or answers 5xx, or a request for one
token gets no answer, while the engine's counters have not moved for a while. Whatever cannot be decided
passes, and the shell that starts it passes for every other status: a missing interpreter (127), one that
fails to start (1), one that is killed (137).
It needs the standard library of Python 3.8 or newer. designs/0009-liveness-by-progress.md has the reasons.
"""

import json
import os
import signal
import socket
import sys
import time
import zlib

PORT, SCHEME, VARIABLES = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
HUNG = 100
# Seconds since the shell began; the probe's timeoutSeconds is 30.
DEADLINE, HEALTH, PAGE, LATEST_CANARY = 25, 10, 3, 8
LARGEST = 8 << 20
# What only the engine moves. During a chunked prefill only the use of the cache changes.
COUNTERS = tuple(
    b"vllm:" + name
    for name in (
        b"iteration_tokens_total",
        b"generation_tokens",
        b"prompt_tokens",
        b"kv_cache_usage_perc",
        b"gpu_cache_usage_perc",
        b"num_requests_running",
        b"num_requests_waiting",
        b"num_preemptions",
        b"prefix_cache_queries",
    )
)
CANARIES = (
    ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
    ("/v1/embeddings", {"input": "a"}),
    ("/pooling", {"input": "a"}),
    ("/classify", {"input": "a"}),
    ("/score", {"text_1": "a", "text_2": "a"}),
)


def age():
    try:
        with open("/proc/%d/stat" % os.getppid()) as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0
    return seconds if 0 <= seconds <= 2 * DEADLINE else 0


END = time.monotonic() + DEADLINE - age()


def finish(code, message):
    print(message, flush=True)
    os._exit(code)


def left():
    return END - time.monotonic()


def ask(path, seconds, body=None):
    """(status, body). The status is 0 if refused, -1 if broken off, None if there is no answer in time; the
    body is None if it was not read to its end."""
    until = time.monotonic() + min(seconds, left())
    data = b"" if body is None else json.dumps(body).encode()
    head = ["%s %s HTTP/1.0" % ("GET" if body is None else "POST", path), "Host: localhost:%d" % PORT]
    head += [
        "User-Agent: mlchassis-liveness",
        "Content-Type: application/json",
        "Content-Length: %d" % len(data),
    ]
    key = next((os.environ[name] for name in VARIABLES if os.environ.get(name)), "")
    if path.startswith("/v1") and key.isprintable() and key.isascii():
        head += ["Authorization: Bearer " + key] if key else []
    page = b""
    for address in ("127.0.0.1", "::1"):
        try:
            with socket.create_connection((address, PORT), max(until - time.monotonic(), 0.1)) as connection:
                if SCHEME == "https":
                    import ssl

                    connection = ssl._create_unverified_context().wrap_socket(connection)
                connection.sendall("\r\n".join([*head, "", ""]).encode() + data)
                while len(page) < LARGEST:
                    connection.settimeout(max(until - time.monotonic(), 0.1))
                    more = connection.recv(1 << 16)
                    if not more or time.monotonic() > until:
                        break
                    page += more
                start, _, rest = page.partition(b"\r\n\r\n")
                status = int(start.split(b" ", 2)[1])
                return status, None if more else rest
        except ConnectionRefusedError:
            continue
        except OSError as error:
            timed_out = isinstance(error, socket.timeout)
            return (None if timed_out else -1), None
        except (ValueError, IndexError):
            return -1, None
    return 0, None


def counters():
    """A number that changes if the engine works; None if its counters cannot be read."""
    status, page = ask("/metrics", PAGE)
    lines = [
        line for line in (page or b"").split(b"\n") if line.startswith(COUNTERS) and b"_created" not in line
    ]
    return zlib.crc32(b"\n".join(lines)) if status == 200 and lines else None


def memory():
    """A file that outlives this process: what the counters were, and when the server last lived."""
    for folder in ("/tmp", "/dev/shm"):
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            return os.open("%s/.mlchassis-liveness-%d" % (folder, PORT), flags, 0o600)
        except OSError:
            continue
    return finish(0, "cannot tell: neither /tmp nor /dev/shm can be written")


def read(file):
    try:
        seen, last = os.read(file, 100).split()
        return (int(seen), float(last)) if float(last) <= time.monotonic() else (None, 0.0)
    except (OSError, ValueError):
        return None, 0.0


def alive(file, seen, message):
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, b"%d %f" % (seen or 0, time.monotonic()), 0)
    except OSError:
        pass
    finish(0, message)


def canary(model):
    """Whether the engine answered; None if it was asked and did not answer in time."""
    for path, body in CANARIES:
        if left() < LATEST_CANARY:
            return False
        status, _ = ask(path, left() - PAGE - 1, {"model": model, **body})
        if status is None or status == 200:
            return status
        if status in (0, -1, 401, 403, 429) or status >= 500:
            return False
    return False


def main():
    signal.signal(signal.SIGALRM, lambda *_: finish(0, "cannot tell: no time left"))
    signal.setitimer(signal.ITIMER_REAL, max(left(), 0.1))
    health, _ = ask("/health", HEALTH)
    if health == 0:
        finish(HUNG, "nothing listens on port %d" % PORT)
    file = memory()
    before, last = read(file)
    seen = counters()
    if before is None or (seen is not None and seen != before):
        alive(file, seen, "the engine works")
    if health is None or health < 0:
        wrong = "GET /health gets no answer"
    elif health >= 500:
        wrong = "GET /health answers %d" % health
    else:
        status, page = ask("/v1/models", PAGE)
        try:
            served = json.loads(page or b"")["data"] if status == 200 else []
            model = next(each["id"] for each in served if not each.get("parent"))
        except (ValueError, LookupError, TypeError, AttributeError, StopIteration):
            alive(file, seen, "cannot tell: GET /v1/models answers %s" % status)
        answered = canary(model)
        if answered:
            alive(file, counters(), "the engine answers")
        after = counters()
        if answered is False or seen is None or after != seen:
            alive(file, after, "cannot tell")
        wrong = "a request for one token gets no answer"
    # Replicas that hang at the same time are not restarted at the same time.
    patience = 30 + zlib.crc32(os.uname().nodename.encode()) % 60
    silent = time.monotonic() - last
    code = HUNG if silent >= patience else 0
    finish(code, "%s, and the engine's counters have not moved for %d s" % (wrong, silent))


try:
    main()
except BaseException as error:
    finish(0, "cannot tell: %s" % type(error).__name__)
