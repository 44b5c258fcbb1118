"""Reads the commands of containers, probes and hooks: argv and environment in, a typed summary out.

`read` is pure: it runs no command, resolves no name, and never raises. A host that only the running container
knows is undecidable: rules may warn about it and never deny. All the commands of a review share a
`StepBudget`. For a command that exceeds it, the summary is empty and not `complete`, and no decision may rest
on it.

Other packages import only the names below; the modules are internal.

| question | module |
|---|---|
| how a script is parsed | `shell`, to the tree of `syntax`; variables and quotes: `expansion`, `values` |
| in which order it runs (`&&`, loops, functions) | `walk` |
| which program runs | `reader`; shells: `programs`; `exec`, `env`, `timeout` and the like: `wrappers` |
| which options it has | `options` |
| which hosts it reaches | `client_hosts`, with `clients` of `clients.yaml`; code: `interpreters` |
| whether a host is in the pod | `hosts` |
| whether it ends, and after how long | `ends`, `durations` |
| which programs get no signals (`trap`) | `children` |
| whose exit codes nobody sees | `exit_codes` |
| what is returned, and the limit on the work | `model` |

Imports: no other package of this repository.
"""

from policies.commands.children import children
from policies.commands.client_hosts import PROXY_VARIABLES
from policies.commands.ends import runs_forever
from policies.commands.exit_codes import Unseen, shows_failures, unseen
from policies.commands.hosts import reach_of
from policies.commands.interpreters import argument_of
from policies.commands.model import BudgetSpent, Command, CommandSummary, Host, Reach, ScriptLoop, StepBudget
from policies.commands.options import parse_options, valued
from policies.commands.programs import (
    ACTIVATES,
    DOWNLOADERS,
    LOCAL_PROGRAMS,
    SHELLS,
    is_python,
    shell_operands,
)
from policies.commands.reader import read

__all__ = [
    "ACTIVATES",
    "DOWNLOADERS",
    "LOCAL_PROGRAMS",
    "PROXY_VARIABLES",
    "SHELLS",
    "BudgetSpent",
    "Command",
    "CommandSummary",
    "Host",
    "Reach",
    "ScriptLoop",
    "StepBudget",
    "Unseen",
    "argument_of",
    "children",
    "is_python",
    "parse_options",
    "reach_of",
    "read",
    "runs_forever",
    "shell_operands",
    "shows_failures",
    "unseen",
    "valued",
]
