"""Reading container and probe commands: argv and environment in, a typed summary out.

The reading is pure: it runs no command, looks up no name, and no input makes `read` raise. If only the
running container knows what a command reaches, the summary is undecided; a rule then warns and never denies.
Reading is paid for from a `Budget`, one for all the commands of a review. A command that can't be read whole
within it gives an empty summary that is not `complete`, and no decision may rest on it.

Other packages import only the names below; the modules are internal. Each question has its modules:

- which program runs: `reader`, by the tables of `programs` and `wrappers`; `walk` goes through scripts
- which hosts it reaches: `reach`, by the table `clients.yaml`; `python_code` and `other_code` for code
- whether it ends: `ends`
- how long it takes: `durations`

Imports: no other package of this repository.
"""

from policies.commands.budget import Budget, BudgetSpent
from policies.commands.children import children
from policies.commands.durations import seconds
from policies.commands.hosts import reach_of
from policies.commands.model import Command, CommandSummary, Host, Loop, Reach
from policies.commands.options import parse_options, valued
from policies.commands.programs import SHELLS, is_python
from policies.commands.reader import read

__all__ = [
    "SHELLS",
    "Budget",
    "BudgetSpent",
    "Command",
    "CommandSummary",
    "Host",
    "Loop",
    "Reach",
    "children",
    "is_python",
    "parse_options",
    "reach_of",
    "read",
    "seconds",
    "valued",
]
