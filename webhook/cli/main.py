"""The `chassis` command: its subcommands, and the handling of errors.

A subcommand is a module with `add_arguments(parser)`, which sets the parser's default `run`: a function from
the parsed arguments to the exit status. Only the requested subcommand is imported, so that `--version` and
`--help` take no longer than starting Python.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NoReturn

from webhook.cli.examples import epilog
from webhook.cli.flags import BAD_INPUT, OK
from webhook.errors import UserError

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("webhook.server.main", "run the webhook"),
    "review": ("webhook.cli.review", "review manifests without a cluster"),
    "fix": ("webhook.cli.fix", "write missing fields and simple fixes into manifests"),
    "scan": ("webhook.cli.scan", "review the objects of a cluster"),
    "why": ("webhook.cli.why", "show who set each field of a pod or workload, why, and how to change it"),
    "graph": ("webhook.cli.graph", "show dependencies and the workloads that a failure affects"),
    "tune": ("webhook.cli.tune", "compare startup budgets and memory limits with observed values"),
    "exemptions": ("webhook.cli.exemptions", "list exemptions with reason, age and end"),
    "explain": ("webhook.cli.explain", "explain a rule or policy, and how to fix its findings"),
    "policy": ("webhook.cli.policy", "check and test a policy, preview an edit, print the JSON Schema"),
    "manifests": ("webhook.cli.manifests", "print the installation manifests as YAML"),
    "log-level": ("webhook.cli.log_level", "change the log level of a running server"),
    "completion": ("webhook.cli.completion", "print the completion script of a shell"),
    "certs": ("webhook.cli.certs", "create or show a serving certificate"),
    "unregister": (
        "webhook.cli.unregister",
        "delete the webhook configurations before you remove the webhook",
    ),
}
"""The module and the help text of each subcommand."""
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "review manifests": ("review", "fix", "explain"),
    "inspect a cluster": ("scan", "why", "graph", "tune", "exemptions"),
    "write a policy": ("policy",),
    "operate the webhook": ("serve", "manifests", "certs", "log-level", "unregister", "completion"),
}
"""The subcommands by task, as the help lists them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `chassis` and return the exit status. `argv` None: the arguments of this process."""
    return _process("chassis") if argv is None else _run("chassis", argv)


def kubectl() -> int:
    """Entry point of the kubectl plugin: `kubectl chassis review -f x.yaml`."""
    return _process("kubectl chassis")


def _process(prog: str) -> int:
    # pydantic would search every installed package for plugins; there are none.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if "serve" not in sys.argv[1:2]:
        gc.set_threshold(100_000)  # what a command imports and loads stays until its end
    status = _run(prog, sys.argv[1:])
    gc.freeze()  # saves the garbage collection at exit
    return status


def _run(prog: str, argv: Sequence[str]) -> int:
    if "--version" in argv and set(argv) <= {"--version", "-v"}:
        _print_version(detailed="-v" in argv)
        return OK
    args = _parser(prog, argv).parse_args(argv)
    if (color := getattr(args, "color", "auto")) != "auto":
        os.environ |= {"NO_COLOR": "1" if color == "never" else "", "FORCE_COLOR": "1"}
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except UserError as error:
        from webhook.admission.printable import printable

        for problem in error.problems:
            print(printable(f"{prog}: {problem}"), file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader closed the pipe (`| head`). Without this, Python reports the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


def whole_parser() -> argparse.ArgumentParser:
    return _parser("chassis", list(COMMANDS))


def _parser(prog: str, argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=prog,
        description="An admission webhook for machine-learning workloads.",
        formatter_class=_Grouped,
    )
    parser.add_argument(
        "--version",
        action="store_true",
        help="show program's version number and exit; with -v also the Python and the fast path",
    )
    parser.add_argument("-v", action="store_true", help=argparse.SUPPRESS)
    parser.command = next((each for each in argv if each in COMMANDS), "")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, (module, help) in COMMANDS.items():
        command = commands.add_parser(name, help=help, formatter_class=_Command)
        if name in argv:
            importlib.import_module(module).add_arguments(command)
            command.epilog = epilog(name, prog)
            for subname, subcommand in _subcommands(command):
                subcommand.formatter_class = _Command
                subcommand.epilog = epilog(name, prog, subname)
    return parser


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


class _Parser(argparse.ArgumentParser):
    """Prints an error in one line, like all other errors, instead of below the usage."""

    command = ""
    """The subcommand, because argparse reports unknown arguments by the parent parser."""

    def error(self, message: str) -> NoReturn:
        command = f"{self.prog} {self.command}".rstrip()
        hint = self._suggestion(message)
        if hint:  # says more than the list of all choices
            message = message.partition(" (choose from ")[0]
        self.exit(BAD_INPUT, f"{command}: {message}{hint}; {command} --help lists the arguments\n")

    def _suggestion(self, message: str) -> str:
        """`; did you mean --output?` for a misspelt flag or choice that argparse reports."""
        from policies.kube.names import did_you_mean

        if message.startswith("unrecognized arguments: -"):
            return did_you_mean(message.split()[2].partition("=")[0], _flags(self))
        word, _, choices = message.partition("invalid choice: '")[2].partition("' (choose from ")
        return did_you_mean(word, re.findall(r"[\w-]+", choices))


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The flags of a parser and of its subcommands that are loaded."""
    yield from parser._option_string_actions
    for _, command in _subcommands(parser):
        yield from _flags(command)


class _Command(argparse.RawDescriptionHelpFormatter):
    """Wraps the description, and keeps the lines of the examples below it."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return text
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


class _Grouped(argparse.HelpFormatter):
    """Lists the subcommands by task; argparse has only one list."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        width = max(map(len, COMMANDS)) + 2
        return "\n".join(
            "".join([f"  {group}:\n", *(f"    {name:<{width}}{COMMANDS[name][1]}\n" for name in names)])
            for group, names in GROUPS.items()
        )


def _print_version(*, detailed: bool) -> None:
    from webhook.version import version

    print(f"chassis {version()}")
    if detailed:
        print(f"Python {sys.version.split()[0]}\nfast path: {_fast_path()}")


def _fast_path() -> str:
    """The fast path's state in `chassis serve` with this build and environment."""
    from importlib.util import find_spec

    if find_spec("webhook.fast_path") is None:
        return "not in this build"
    return "off" if os.environ.get("CHASSIS_FAST_PATH") == "off" else "on"
