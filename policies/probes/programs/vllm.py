"""Whether a vLLM server makes progress: kubelet runs this in the server's container, as its liveness probe.

`python3 -I -S -c <this text> PORT http|https START [VARIABLE ...]`; the variables may hold the API key. It
exits with 100 only if the server is known to hang: /health does not answer or answers 5xx, or a request for
one token gets no answer, while the engine's counters have not moved for a while. An undecided check passes,
and the shell that starts it passes for every other status: a missing interpreter (127), one that fails to
start (1), one that is killed (137). START is 0 if a startupProbe waits for the start, else the seconds that a
start may take: until the server has answered, the program exits with 100 if its processes are idle, or if
that time is over. It needs the standard library of Python 3.8 or newer. designs/0009-liveness-by-progress.md
and designs/0010-startup-by-progress.md have the reasons.
"""

import json
import os
import signal
import socket
import sys
import time
import zlib

PORT, SCHEME, START, VARIABLES = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]
HUNG = 100
# Seconds since the shell began; the probe's timeoutSeconds is 30.
DEADLINE, HEALTH, PAGE, LATEST_CANARY = 25, 10, 3, 8
LARGEST = 8 << 20
# A start that does less than each of these in so many seconds hangs: seconds of CPU time, bytes of memory,
# bytes read and written, bytes received. A worker whose download hangs polls with 1.5 % of a processor.
STALLED = 900
LEAST = (30.0, 8 << 20, 1 << 20, 64 << 10)
# Counters that only the engine changes. During a chunked prefill only the use of the cache changes.
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
    page, more = b"", b"more"
    for address in ("127.0.0.1", "::1"):
        try:
            with socket.create_connection((address, PORT), max(until - time.monotonic(), 0.1)) as connection:
                if SCHEME == "https":
                    import ssl

                    connection = ssl._create_unverified_context().wrap_socket(connection)
                connection.sendall("\r\n".join([*head, "", ""]).encode() + data)
                try:
                    while more and len(page) < LARGEST:
                        connection.settimeout(max(until - time.monotonic(), 0.1))
                        more = connection.recv(1 << 16)
                        page += more
                        if time.monotonic() > until:
                            break
                except socket.timeout:
                    pass  # a status may be there already
            start, _, rest = page.partition(b"\r\n\r\n")
            if more and b"\r\n" not in page:
                return None, None
            return int(start.split(b" ", 2)[1]), None if more else rest
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


def memory(subject):
    """A file that outlives this process. Of the liveness: the counters, and when the server last lived."""
    for folder in ("/tmp", "/dev/shm"):
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            return os.open("%s/.mlchassis-%s-%d" % (folder, subject, PORT), flags, 0o600)
        except OSError:
            continue
    return finish(0, "cannot tell: neither /tmp nor /dev/shm can be written")


def read(file):
    try:
        return [float(word) for word in os.read(file, 400).split()]
    except (OSError, ValueError):
        return []


def write(file, *numbers):
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, b" ".join(b"%f" % number for number in numbers), 0)
    except OSError:
        pass


def alive(file, seen, message):
    write(file, seen or 0, time.monotonic())
    finish(0, message)


def jitter():
    """Replicas that hang at the same time are not restarted at the same time."""
    return zlib.crc32(os.uname().nodename.encode())


def work():
    """When the container's first process began, then what its processes have done so far, as in LEAST."""
    first = ticks = pages = moved = received = 0
    own = os.getpid(), os.getppid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in own:
            continue
        try:
            with open("/proc/%s/stat" % name) as file:
                numbers = file.read().rpartition(")")[2].split()
            ticks += sum(int(number) for number in numbers[11:15])
            pages += int(numbers[21])
            first = int(numbers[19]) if name == "1" else first
            with open("/proc/%s/io" % name) as file:
                moved += sum(int(line.split()[1]) for line in file)
        except (OSError, ValueError, IndexError):
            continue
    try:
        with open("/proc/net/dev") as file:
            for line in file:
                name, colon, numbers = line.partition(":")
                received += int(numbers.split()[0]) if colon and name.strip() != "lo" else 0
    except (OSError, ValueError, IndexError):
        pass
    seconds = ticks / os.sysconf("SC_CLK_TCK")
    return first, seconds, pages * os.sysconf("SC_PAGE_SIZE"), moved, received


def starting(answers):
    """Ends the program while the server has not answered since its container started; returns afterwards."""
    file = memory("start")
    known, now = read(file), time.monotonic()
    try:
        first, *done = work()
    except OSError:
        first, done = 0, [0]
    if answers:
        if known != [first]:
            write(file, first)
        return
    if not first or not done[0]:
        finish(0, "cannot tell: it starts, and its processes cannot be seen")
    if known == [first]:
        return
    if len(known) != 7 or known[0] != first or not known[1] <= known[2] <= now:
        known = [first, now, now, *done]
    # Memory that is taken away is no work. A process that ends takes its other counts with it.
    known[4] = min(known[4], done[1])
    if any(abs(done[n] - known[3 + n]) >= least for n, least in enumerate(LEAST)):
        known[2:] = [now, *done]
    write(file, *known)
    age, silent = now - known[1], now - known[2]
    if age >= START:
        finish(HUNG, "it has not answered for %d s since its start" % age)
    if silent >= STALLED + jitter() % 300:
        finish(HUNG, "it starts, and its processes have done nothing for %d s" % silent)
    finish(0, "it starts; its processes worked %d s ago" % silent)


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
    if START:
        starting(health is not None and 0 < health < 500)
    if health == 0:
        finish(HUNG, "nothing listens on port %d" % PORT)
    file = memory("liveness")
    known = read(file)
    before, last = known if len(known) == 2 and known[1] <= time.monotonic() else (None, 0.0)
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
    silent = time.monotonic() - last
    code = HUNG if silent >= 30 + jitter() % 60 else 0
    finish(code, "%s, and the engine's counters have not moved for %d s" % (wrong, silent))


try:
    main()
except BaseException as error:
    finish(0, "cannot tell: %s" % type(error).__name__)
