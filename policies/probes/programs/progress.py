"""Whether a model server makes progress: the kubelet runs this in its container, as its liveness probe.

`python3 -I -S -c <this text> PORT http|https START PATH PLAN [VARIABLE ...]`. PATH is the liveness endpoint,
empty for an open port. PLAN is JSON, from a preset's `progress` or an annotation: where the server shows what
it has finished, and what it may be asked. Without a page, its connections show it. The variables may hold the
API key. START is 0 if a startupProbe waits for the start, else the seconds that a start may take: until the
server has answered, the program fails if its processes are idle, or if that time is over.

The exit status is 100 only if the server is known to hang. A check of progress counts only if it has worked
before in this container. If it has not, the program decides as a plain probe of PATH does, and prints why. It
needs the standard library of Python 3.8 or newer. designs/0009-liveness-by-progress.md and
designs/0010-startup-by-progress.md have the reasons.

A comment such as `part: page` begins lines that only some plans need; `program` in liveness_program.py leaves
them out for the others.
"""

import json
import os
import signal
import socket
import struct
import sys
import time
import zlib
from collections import namedtuple

PORT, SCHEME, START, PATH = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
PLAN, VARIABLES = json.loads(sys.argv[5]), sys.argv[6:]
# The canaries' body is in a variable, or none is sent.
if "body" in PLAN:
    found = os.environ.get(PLAN["body"])
    PLAN["canaries"] = [[path, found] for path, _ in PLAN["canaries"] if found]
HUNG = 100
# Seconds since the shell began; the probe's timeoutSeconds is 30, and `longest` more.
DEADLINE, HEALTH, PAGE, LATEST_CANARY = 25 + PLAN["longest"], 10, 3, 8 + PLAN["longest"]
LARGEST = 8 << 20
# A start that does less than each of these in so many seconds hangs: seconds of CPU time, bytes of memory,
# bytes read and written, bytes received. A worker whose download hangs polls with 1.5 % of a processor.
STALLED = 900
LEAST = (30.0, 8 << 20, 1 << 20, 64 << 10)
# Seconds without finished work after which an endpoint that fails counts.
SILENT = 30
# Seconds for which every request has failed with status 500 since the last one that did not.
BROKEN = 300
MARK = b"mlchassis liveness, "
# A server without a canary uses less than this share of a processor while it hangs.
IDLE = 1 / 30
# What is remembered of the page from the last sign of life.
KINDS = "done", "steps", "churn", "arrived", "failed"


def age():
    try:
        with open("/proc/%d/stat" % os.getppid()) as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0
    return seconds if 0 <= seconds <= 2 * DEADLINE else 0


END = time.monotonic() + DEADLINE - age()
# What the server showed, for the black box.
SHOWN = {}


def finish(code, message):
    print(message, flush=True)
    record(code, message)
    os._exit(code)


def threads():
    """How many threads of the container are in which state, such as `4 python S futex_wait_queue`."""
    counts = {}
    for pid in processes()[:64]:
        if int(pid) in (os.getpid(), os.getppid()):
            continue
        try:
            tasks = os.listdir("/proc/%s/task" % pid)[:256]
        except OSError:
            continue
        for task in tasks:
            try:
                with open("/proc/%s/task/%s/stat" % (pid, task)) as file:
                    name, _, rest = file.read().partition("(")[2].rpartition(")")
                state, place = rest.split()[0], ""
                with open("/proc/%s/task/%s/wchan" % (pid, task)) as file:
                    place = file.read().strip("0\n")
            except (OSError, IndexError):
                continue
            key = " ".join(part for part in (name, state, place) if part)
            counts[key] = counts.get(key, 0) + 1
    return sorted(
        ("%d %s" % (count, key) for key, count in counts.items()), key=lambda line: -int(line.split()[0])
    )


# The API server shows at most 4 KiB as the message of the container's end. A server may write its own there.
def record(code, message):
    """Write what was seen of a hang to the termination log; remove it if the server is alive after all."""
    try:
        box = os.open("/dev/termination-log", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        there = os.read(box, len(MARK))
        if there not in (b"", MARK) or (code != HUNG and not there):
            return
        os.ftruncate(box, 0)
        if code == HUNG:
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            shown = ", ".join("%s %g" % each for each in sorted(SHOWN.items()))
            lines = [
                "at %s: %s" % (when, message),
                "it showed: %s" % (shown or "nothing"),
                "threads:",
                *threads(),
            ]
            os.pwrite(box, MARK + "\n".join(lines).encode()[:2000], 0)
    except (OSError, ValueError):
        pass


def left():
    return END - time.monotonic()


# The status is 0 if refused, -1 if broken off, None if there is no answer in time; the body is None if it was
# not read to its end. Without a path only the connection counts.
def ask(path, seconds, body=None, port=PORT):
    """(status, body)"""
    until = time.monotonic() + min(seconds, left())
    data = body.encode() if isinstance(body, str) else b"" if body is None else json.dumps(body).encode()
    head = ["%s %s HTTP/1.0" % ("GET" if body is None else "POST", path), "Host: localhost:%d" % port]
    head += [
        "User-Agent: mlchassis-liveness",
        "Content-Type: application/json",
        "Content-Length: %d" % len(data),
    ]
    if (data or path.startswith("/v1")) and KEY.isprintable() and KEY.isascii():
        head += ["Authorization: Bearer " + KEY] if KEY else []
    page, more = b"", b"more"
    for address in ("127.0.0.1", "::1"):
        try:
            with socket.create_connection((address, port), max(until - time.monotonic(), 0.1)) as connection:
                if not path:
                    return 200, None
                if SCHEME == "https" and port == PORT:
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
            if b": chunked" in start.lower():  # uvicorn does so in HTTP/1.0, too
                page, size = b"", 1
                while not more and size:
                    line, _, rest = rest.partition(b"\r\n")
                    size = int(line.partition(b";")[0] or b"0", 16)
                    page, rest = page + rest[:size], rest[size + 2 :]
                rest = page
            return int(start.split(b" ", 2)[1]), None if more else rest
        except ConnectionRefusedError:
            continue
        except OSError as error:
            if error.errno in (97, 99):  # EAFNOSUPPORT, EADDRNOTAVAIL: it has no IPv6
                continue
            timed_out = isinstance(error, socket.timeout)
            return (None if timed_out else -1), None
        except (ValueError, IndexError):
            return -1, None
    return 0, None


def page():
    """What the metrics page shows, summed for each kind of metric; None if it shows no finished work."""
    shown = metrics() if PLAN["page"] else connections()
    SHOWN.update(shown or {})
    return shown


# part: page
def metrics():
    status, text = ask(PLAN["page"], PAGE, port=PLAN["port"] or PORT)
    kinds = {name: kind for kind, names in PLAN["metrics"].items() for name in names}
    sums = {}
    for line in (text or b"").decode("utf-8", "replace").split("\n"):
        name, labelled, rest = line.partition("{")
        labels, _, value = rest.rpartition("}")
        if not labelled:
            name, _, value = line.partition(" ")
        elif any(word in labels for word in PLAN["ignored"]):
            continue
        try:
            number = float(value.split()[0]) if name in kinds else float("nan")
        except (ValueError, IndexError):
            continue
        if number - number == 0:  # neither NaN nor infinite
            sums[kinds[name]] = sums.get(kinds[name], 0.0) + number
    return sums if status == 200 and "done" in sums else None


# part: all
# `=4BI2H36xQ` is struct inet_diag_req_v2, with the states of established, half-closed and listening sockets.
def sockets(several=False):
    """(state, cookie, client's port, whether unaccepted, ms since sent, ms since received, bytes sent)"""
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as kernel:
            kernel.settimeout(2)
            wanted = struct.pack("=4BI2H36xQ", family, 6, 2, 0, 0x502, socket.htons(PORT), 0, 2**64 - 1)
            kernel.send(struct.pack("=I2H2I", 16 + len(wanted), 20, 0x301, 1, 0) + wanted)
            kind = 20
            while kind == 20:
                data = kernel.recv(1 << 16)
                while data:
                    size, kind = struct.unpack_from("=IH", data)
                    if kind != 20:
                        break
                    sent = received = done = 0
                    at = 88
                    while at < size:
                        length, name = struct.unpack_from("=HH", data, at)
                        if name == 2 and length >= 132:
                            sent, _, received = struct.unpack_from("=3I", data, at + 48)
                            (done,) = struct.unpack_from("=Q", data, at + 124)
                        at += max(length + 3 & ~3, 4)
                    (port,) = struct.unpack_from(">H", data, 22)
                    cookie, inode = struct.unpack_from("=Q16xI", data, 60)
                    found.append((data[17], cookie, port, not inode, sent, received, done))
                    data = data[size + 3 & ~3 :]
    if not several and sum(each[0] == 10 for each in found) != 1:
        raise OSError("none listens, or several")
    return found


# part: connections
# When the list of connections was asked for and had been read, and for how many ms each one has waited.
READ = [0.0, 0.0, []]


def listed():
    began = time.monotonic()
    seen = [each for each in sockets() if each[0] != 10]
    READ[:] = began, time.monotonic(), [each[4] for each in seen if each[3]]
    return seen


def waited(at, since, margin):
    """How many connections that waited at `at` had waited since the moment `since`, or `margin` ms longer."""
    return sum(age > (at - since) * 1000 + margin for age in READ[2])


def next_in(queue):
    """The connection that is accepted next, the oldest: before, a connection has sent nothing."""
    oldest = max((each[4] for each in queue), default=0)
    return float(min((each[1] for each in queue if each[4] > oldest - 20), default=0))


# `done` changes when the server accepts connections of a queue. Of those that came within 20 ms, the last
# may be taken for the first; then only `waited` shows that the others are accepted. With a canary, `done`
# also changes while clients that keep their connections get answers and go on asking. Without one, a
# connection is made for it.
def connections():
    """What the port's connections show, as `page` does; None if the kernel does not show them."""
    try:
        if PLAN["canaries"]:
            seen = listed()
            sent = sum(each[6] for each in seen if each[0] == 1 and each[5] < each[4])
            return {"done": next_in([each for each in seen if each[3] and each[4] > 1000]) + sent}
        until, port = time.monotonic() + PAGE, 0
        for address in ("127.0.0.1", "::1"):
            try:
                own = socket.create_connection((address, PORT), PAGE / 2)
                port = own.getsockname()[1]
                break
            except ConnectionRefusedError:
                continue
            except socket.timeout:
                break  # the queue is full
        while True:
            seen = listed()
            waiting = [each for each in seen if each[3]]
            if port and any(each[2] == port and not each[3] for each in seen):
                return {"done": time.monotonic()}
            if not port or time.monotonic() > until:
                break
            time.sleep(0.05)
    except (OSError, struct.error):
        return None
    return {"done": next_in(waiting), "waiting": float(len(waiting))}


# part: all
def served():
    """Whether clients were sent something in the last 30 s, by an event loop that is too busy for checks."""
    try:
        return any(each[0] == 1 and each[6] and each[4] < 30000 for each in sockets())
    except (OSError, struct.error):
        return False


def elsewhere():
    """Whether it listens on the port, though on no address of loopback: the kubelet asks the pod's."""
    try:
        return any(each[0] == 10 for each in sockets(True))
    except (OSError, struct.error):
        return False


def memory(subject):
    """A file that outlives this process; None if there is no place for it."""
    for folder in ("/tmp", "/dev/shm"):
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            return os.open("%s/.mlchassis-%s-%d" % (folder, subject, PORT), flags, 0o600)
        except OSError:
            continue
    return None


def read(file):
    try:
        return [float(word) for word in os.read(file, 400).split()]
    except (OSError, ValueError):
        return []


def write(file, *numbers):
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, " ".join(repr(float(number)) for number in numbers).encode(), 0)
    except OSError:
        pass


def processes():
    try:
        return [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def is_code(words):
    """Whether a shell or Python runs the text behind its `-c`, as this program; also behind `tini --`."""
    interpreter = False
    for word in words:
        if interpreter and word.startswith("-"):
            if word.endswith("c") and not word.startswith("--"):
                return True
        else:
            name = word.rpartition("/")[2].rstrip("0123456789.")
            interpreter = name in ("python", "sh", "bash", "dash", "ash")
    return False


def arguments():
    """The processes of the container: the number, an argument and the next one."""
    for name in processes():
        try:
            with open("/proc/%d/cmdline" % int(name), "rb") as file:
                words = file.read(1 << 20).decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        for at, word in enumerate(() if is_code(words) else words[:-1]):
            yield name, word, words[at + 1]


def named(word):
    """`--a_b=c` and `--a-b.c` -> `--a-b`."""
    return word.partition("=")[0].partition(".")[0].replace("_", "-")


def harmless(flag, value):
    """Whether a flag's JSON has, at every depth, only the values with which it does no harm."""
    try:
        parts = [json.loads(value)]
    except (ValueError, RecursionError):
        return False
    known, found = PLAN["harmless"].get(flag, {}), False
    for part in parts:
        if isinstance(part, dict):
            for name in known.keys() & part.keys():
                if part[name] not in known[name]:
                    return False
                found = True
            parts += part.values()
        elif isinstance(part, list):
            parts += part
    return found


def unsuitable():
    """What the server was started with that makes a request or the counters mean something else."""
    for name in PLAN["env"]:
        if os.environ.get(name):
            return "%s is set" % name
    for pid, word, following in arguments():
        flag = named(word)
        if flag in PLAN["unless"] and not harmless(flag, word.partition("=")[2] or following):
            return "it is started with %s" % flag
        if flag in PLAN["config"]:
            path = word.partition("=")[2] or following
            try:
                with open(os.path.join("/proc/%s/cwd" % pid, path)) as file:
                    lines = file.read(1 << 20).splitlines()
            except (OSError, ValueError):
                return "%s cannot be read" % path
            for line in lines:
                name, _, value = line.partition(":")
                flag = named("--" + name.strip(" \"'"))
                if flag in PLAN["unless"] and not harmless(flag, value.strip(" '")):
                    return "its configuration has %s" % flag
    return None


def key():
    """The API key, from the server's arguments or a variable."""
    for _, word, following in arguments():
        if named(word) in PLAN["keys"]:
            return word.partition("=")[2] or following
    return next((os.environ[name] for name in VARIABLES if os.environ.get(name)), "")


KEY = key()


def jitter():
    """Replicas that hang at the same time are not restarted at the same time."""
    return zlib.crc32(os.uname().nodename.encode())


def work():
    """When the container's first process began, then what its processes have done so far, as in LEAST."""
    first = ticks = pages = moved = received = 0
    own = os.getpid(), os.getppid()
    for name in processes():
        if int(name) in own:
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


# part: watch
def lost():
    """Whether a process of PLAN's workers was stopped, or ended without another in its place."""
    for name in processes():
        try:
            with open("/proc/%s/stat" % name) as file:
                start, _, rest = file.read().rpartition(") ")
        except OSError:
            continue
        title = start.partition("(")[2]
        if rest[:1] in ("Z", "T") and any(title == worker[:15] for worker in PLAN["workers"]):
            return True
    return False


# part: workers
def workers_run():
    """Whether a process of PLAN's workers is there."""
    return any(word.rpartition("/")[2] in PLAN["workers"] for _, word, _ in arguments())


# part: start
def starting(answers):
    """Ends the program while the server has not answered since its container started; returns afterwards."""
    file = memory("start")
    if file is None:
        finish(0, "cannot tell: it starts, and neither /tmp nor /dev/shm can be written")
    known, now = read(file), time.monotonic()
    first, *done = work()
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


# part: canary
def canary():
    """The status of a request for as little as possible; None without an answer, 0 if it was not asked."""
    model = {}
    if PLAN["models"]:
        status, text = ask(PLAN["models"], PAGE)
        try:
            served = json.loads(text or b"")["data"] if status == 200 else []
            model = {"model": next(each["id"] for each in served if not each.get("parent"))}
        except (ValueError, LookupError, TypeError, AttributeError, StopIteration):
            return 0
    status = 0
    for path, body in PLAN["canaries"]:
        if left() < LATEST_CANARY:
            return status
        status, _ = ask(path, left() - PAGE - 1, dict(body, **model) if model else body)
        if status is None or status in (0, -1, 200, 401, 403, 429) or status >= 500:
            return status
    return status


# part: all
# What a run remembers for the next one: when the container's first process began, what the page showed at the
# last sign of life, the CPU seconds until then, when that was, and whether the check has worked before.
Known = namedtuple("Known", ("first", *KINDS, "used", "at", "armed"))


class Run:
    """One run: how the server answers, what it has finished since the last sign of life, and the end."""

    def __init__(self):
        self.first, self.used = work()[:2]
        self.health, _ = ask(PATH, HEALTH)
        # A port that neither accepts nor refuses has a full queue.
        self.bad = PATH != "" if self.health is None else not 200 <= self.health < 400
        self.answer = "%s %s" % (
            "GET %s" % PATH if PATH else "port %d" % PORT,
            "answers %d" % self.health if self.health and self.health > 0 else "gets no answer",
        )
        self.source = "GET " + PLAN["page"] if PLAN["page"] else "the list of its connections"

    def plain(self, why, tell=True):
        """Decide as a probe of PATH does, or pass if clients are answered. Why is told once in the log."""
        if self.bad and self.health is None and served():
            finish(0, "it answers clients")
        message = "%s; progress is not checked: %s" % (self.answer, why)
        said = memory("said") if tell else None
        if said is not None and read(said) != [self.first]:
            write(said, self.first)
            try:
                log = os.open("/proc/1/fd/1", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
                os.write(log, ("mlchassis liveness: %s\n" % message).encode())
            except OSError:
                pass
        finish(HUNG if self.bad else 0, message)

    def keep(self, seen, armed):
        shown = {kind: seen.get(kind, 0.0) for kind in KINDS} if seen else self.known._asdict()
        if not PLAN["page"]:
            shown["steps"] = waited(READ[1], self.now, 500)
        write(self.file, self.first, *(shown[kind] for kind in KINDS), self.used, self.now, armed)

    def alive(self, seen, message, armed=None):
        self.keep(seen, self.known.armed if armed is None else armed)
        finish(0, message)

    def moved(self, seen):
        """Whether something was finished since the last sign of life, or a step of it."""
        if seen is None or seen["done"] != self.known.done:
            return seen is not None
        if not PLAN["page"]:
            # The margins are more than reading the list takes. A client that breaks off leaves the list, too.
            return waited(READ[0], self.known.at, -500) < self.known.steps - 2
        running = seen.get("running", 0.0) > 0 and seen.get("churn", 0.0) == self.known.churn
        return running and seen.get("steps", 0.0) != self.known.steps

    def hangs(self, what, least):
        silent = time.monotonic() - self.known.at
        code = HUNG if silent >= least + jitter() % 60 else 0
        finish(code, "%s, and nothing was finished for %d s" % (what, silent))

    def computes(self, seen):
        if not self.used:
            self.plain("its processes cannot be seen", tell=False)
        if self.used - self.known.used >= max(PLAN["silence"], self.now - self.known.at) * IDLE:
            self.alive(seen, "its processes compute")

    def decide(self):
        if self.health == 0 and elsewhere():
            finish(0, "cannot tell: it does not listen on loopback")
        if START:
            starting(self.health is not None and 0 < self.health < 500)
        if self.health == 0:
            finish(HUNG, "nothing listens on port %d" % PORT)
        why = unsuitable()
        if why:
            self.plain(why)
        self.file = memory("liveness")
        if self.file is None:
            self.plain("neither /tmp nor /dev/shm can be written")
        self.now = time.monotonic()
        known, seen = read(self.file), page()
        if len(known) == len(Known._fields):
            self.known = Known(*known)
        if len(known) != len(Known._fields) or self.known.first != self.first or self.known.at > self.now:
            if seen is None:
                self.plain("%s shows no finished work yet" % self.source)
            self.keep(seen, 0)
            self.known = Known(self.first, *(seen.get(kind, 0.0) for kind in KINDS), self.used, self.now, 0)
        # part: workers
        if self.bad and self.health and self.used and not workers_run():
            self.hangs("%s, and no process works for requests" % self.answer, BROKEN)
        # part: all
        if self.moved(seen) and (self.known.armed or not PLAN["canaries"]):
            self.alive(seen, "it works", 1)
        if self.bad and PLAN["page"]:
            self.unhealthy(seen)
        if PLAN["canaries"]:
            self.try_canary(seen)
        self.watch(seen)

    # part: page
    def unhealthy(self, seen):
        """The end of a run whose server has a page, and fails at PATH."""
        if self.moved(seen):
            self.alive(seen, "it works")
        if seen is None and self.health is None and served():
            self.alive(seen, "it answers clients")
        if not self.known.armed:
            self.plain("it has finished nothing yet that the check saw", tell=False)
        self.hangs(self.answer, min(PLAN["silence"], SILENT))

    # part: watch
    def watch(self, seen):
        """The end of a run that sends no request."""
        if seen is None:
            self.plain("%s does not show it" % self.source, tell=False)
        # A gauge of work may keep the requests of a process that has ended, so one must have arrived since.
        stale = "arrived" in PLAN["metrics"] and seen.get("arrived", self.known.arrived) == self.known.arrived
        fails = seen.get("failed", 0.0) != self.known.failed and lost()
        if not fails and (stale or seen.get("waiting", 0.0) <= 0):
            self.alive(seen, "it has nothing to do")
        if not self.known.armed:
            self.plain("it has finished nothing yet that the check saw", tell=False)
        if fails:
            self.hangs("a process that works for requests has ended or was stopped, and they fail", BROKEN)
        self.computes(seen)
        self.hangs("work waits" if PLAN["page"] else "it accepts no connection", PLAN["silence"])

    # part: canary
    def try_canary(self, seen):
        """The end of a run that sends a request."""
        answer = canary()
        after = page()
        if answer is not None and 200 <= answer < 300:
            shown = not PLAN["page"] or (seen and after and after["done"] != seen["done"])
            self.alive(after, "it answers", 1 if self.known.armed or shown else 0)
        if self.moved(after):
            self.alive(after, "it works")
        if answer is not None and (answer != 500 or not PLAN["page"]):
            if self.health is None and answer > 0:
                self.keep(after, self.known.armed)
                self.bad = False  # it answers, though late
            self.plain("the request of the check was refused (%d)" % answer)
        if not self.known.armed or after is None:
            if self.bad and self.health is None and after and not PLAN["page"] and not served():
                self.computes(after)
                self.hangs(self.answer, PLAN["silence"])
            self.plain("no request of the check has been answered yet", tell=False)
        for path in PLAN["paused"]:
            if b"true" in (ask(path, 1)[1] or b""):
                self.alive(after, "it is paused")
        if not PLAN["page"]:
            self.computes(after)
        if answer == 500:
            self.hangs("every request fails", BROKEN)
        self.hangs("a request gets no answer", PLAN["silence"])


# part: all
def main():
    signal.signal(signal.SIGALRM, lambda *_: finish(0, "cannot tell: no time left"))
    signal.setitimer(signal.ITIMER_REAL, max(left(), 0.1))
    Run().decide()


try:
    main()
except BaseException as error:
    finish(0, "cannot tell: %s" % type(error).__name__)
