import shlex

from policies.containers.programs import has_option, option, programs, runs_alone
from policies.containers.programs import started as started_by
from policies.kube.json import Json
from policies.kube.pods import Container, Role
from tests.tables import table


def container_of(spec: Json) -> Container:
    return Container(spec, "containers", 0, Role.MAIN)


def started(container: Json) -> tuple[tuple[str, ...], ...]:
    return programs(container_of(container))


@table(
    ("command", "args", "expected"),
    [
        ("", "", ""),
        ("", "--model m", "--model m"),
        ("", "/opt/bin/tritonserver --model-repository=/m/x", "tritonserver --model-repository=/m/x"),
        ("tini -- python3 -m mlserver start .", "", "mlserver start ."),
        ("python3 -u /srv/app.py --port 1", "", "app.py --port 1"),
        ("python3 -c 'import vllm'", "", ""),
        ("uv run --frozen vllm serve", "", "vllm serve"),
        ("conda run --no-capture-output -n e mlserver start .", "", "mlserver start ."),
        ("uv run --with vllm vllm serve", "", "vllm serve"),
        ("poetry run python -m mlserver", "", "mlserver"),
        ("entrypoint.sh", "", "entrypoint.sh"),
        (  # as Argo's workflow controller leaves a step
            "/var/run/argo/argoexec emissary --loglevel info --log-format text --gloglevel 0 -- vllm serve",
            "m",
            "vllm serve m",
        ),
        ("argoexec wait --loglevel info", "", "argoexec wait --loglevel info"),
        (  # as Tekton leaves a step
            "/tekton/bin/entrypoint",
            "-wait_file /tekton/run/0/out -entrypoint vllm -- serve m",
            "vllm serve m",
        ),
        ("/tekton/bin/entrypoint init", "", "entrypoint init"),
        ("/tekton/bin/entrypoint -entrypoint --", "", "entrypoint -entrypoint --"),
    ],
)
def test_programs(command: str, args: str, expected: str) -> None:
    found = started({"command": shlex.split(command), "args": shlex.split(args)})
    assert found == ((tuple(expected.split()),) if expected else ())


def test_variables_are_put_in_where_the_container_sets_them() -> None:
    container = {
        "command": ["sh", "-c", "D=/models; exec vllm serve $D --port $(PORT) --key $KEY"],
        "env": [{"name": "PORT", "value": "81"}, {"name": "KEY", "valueFrom": {"secretKeyRef": {}}}],
    }
    assert started(container)[-1] == ("vllm", "serve", "/models", "--port", "81", "--key", "$KEY")


def test_every_program_of_a_script_is_seen() -> None:
    script = "mkdir -p /x && (vllm serve m &)\nuntil curl -sf localhost:8000/health; do sleep 1; done"
    names = [words[0] for words in started({"command": ["bash", "-ec", script]})]
    assert {"mkdir", "vllm", "curl", "sleep"} <= set(names)


@table(
    ("script", "conditional"),
    [
        ("cd /m && vllm serve m", False),
        ("test -d /m || mkdir /m; vllm serve m", False),
        ("if cached; then fetch; fi\nvllm serve m", False),
        ("if leader; then vllm serve m; else ray start; fi", True),
        ("case $ROLE in leader) vllm serve m;; *) ray start;; esac", True),
        ("leader || vllm serve m", True),
        ('[ "$RANK" = 0 ] && vllm serve m', True),
        ("[[ $RANK == 0 ]] && vllm serve m", True),
        ("if worker; then exec ray start; fi; vllm serve m", True),
        ("if worker; then ray start --address=$HEAD --block; fi; vllm serve m", True),
        ("if worker; then ray start --address=$HEAD; fi; vllm serve m", False),
        ("if idle; then sleep infinity; fi; vllm serve m", True),
        ("if finished; then exit 0; fi; vllm serve m", True),
        ("if broken; then exit 1; fi; vllm serve m", False),
        ("fetch || { sleep 30; exit; }; vllm serve m", False),
        ("if quiet; then exec > /dev/null; fi; vllm serve m", False),
        ("if leader; then vllm serve m; fi; vllm serve m", False),
        ("hostname | grep -q -- '-0$' && vllm serve m || ray start", True),
        ("if worker; then ray start; while true; do sleep 60; done; fi; vllm serve m", True),
        ("if worker; then ray start; while sleep 60; do :; done; fi; vllm serve m", True),
        ("if slow; then while true; do fetch && break; done; fi; vllm serve m", False),
        ("if slow; then until fetch; do sleep 1; done; fi; vllm serve m", False),
        ("if worker; then ray start; sleep 365d; fi; vllm serve m", True),
        ('if logged; then tail -F "$LOG" & fi; vllm serve m', False),
        ('[ -n "$LOG" ] && tail -F "$LOG" & vllm serve m', False),
        ("(if answers; then exit 0; fi) & vllm serve m", False),
        ("if many; then ray start --head --block & fi; vllm serve m", False),
        ("if worker; then ray start --block & wait; fi; vllm serve m", True),
    ],
)
def test_a_program_in_one_branch_is_started_only_in_some_cases(script: str, conditional: bool) -> None:
    found = started_by(container_of({"command": ["bash", "-c", script]}))
    assert ("vllm", "serve", "m") in found.all
    assert (("vllm", "serve", "m") in found.conditional) is conditional


def test_a_long_launch_is_read() -> None:
    container = {"command": ["sh", "-c", f"echo {'x' * 100_000}; vllm serve m"]}
    assert started(container)[-1] == ("vllm", "serve", "m")


def test_option() -> None:
    words = ("server", "--port", "1", "--host=a", "--port=2", "--quiet", "--name")
    assert option(words, "--port") == "2", "the last one wins"
    assert option(words, "--host", "-h") == "a"
    assert option(words, "--name") == ""
    assert option(words, "--none") is None


def test_has_option() -> None:
    words = ("server", "--tls=true", "--http=false", "--headless")
    assert has_option(words, "--tls")
    assert has_option(words, "--headless")
    assert has_option(words, "--http=false")
    assert has_option((*words, "--http", "False"), "--http=false")
    assert not has_option((*words, "--http=true"), "--http=false")
    assert not has_option(words, "--http=0")
    assert not has_option(words, "--head")


@table(
    ("script", "alone"),
    [
        ("vllm serve m", True),
        ("set -e; mkdir -p /c && . /venv/bin/activate; pip install x; exec vllm serve m", True),
        ("vllm serve m & nginx", False),
        ("source /proxy.sh; vllm serve m", False),
        ("bash /proxy.sh & vllm serve m", False),
        ("if $X; then vllm serve a; else vllm serve b; fi", False),
    ],
)
def test_programs_that_do_not_listen_are_left_out(script: str, alone: bool) -> None:
    assert runs_alone(container_of({"command": ["bash", "-c", script]})) is alone
