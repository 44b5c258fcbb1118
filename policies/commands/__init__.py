"""Reads the commands of containers, probes and hooks: argv and environment in, a typed summary out.

`read` is pure: it runs no command, resolves no name, and never raises. A host that only the running container
knows is undecidable: rules may warn about it and never deny. All the commands of a review share a
`StepBudget`. For a command that exceeds it, the summary is empty and not `complete`, and no decision may rest
on it.

Other packages import only the names below; the modules are internal. Each question has its modules:

- which program runs: `reader`, with the tables of `programs` and `wrappers`; `walk` goes through scripts
- which hosts it reaches: `reach`, with the table `clients.yaml`; `interpreters` for code
- whether it ends: `ends`
- how long it takes: `durations`

Imports: no other package of this repository.
"""

from policies.commands.children import children
from policies.commands.hosts import reach_of
from policies.commands.model import BudgetSpent, Command, CommandSummary, Host, Reach, ScriptLoop, StepBudget
from policies.commands.options import parse_options, valued
from policies.commands.programs import SHELLS, is_python
from policies.commands.reader import read

__all__ = [
    "SHELLS",
    "BudgetSpent",
    "Command",
    "CommandSummary",
    "Host",
    "Reach",
    "ScriptLoop",
    "StepBudget",
    "children",
    "is_python",
    "parse_options",
    "reach_of",
    "read",
    "valued",
]
