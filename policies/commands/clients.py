"""The network and database clients that commands use, as data: where each one's host and timeouts stand.

A row says which options take a value (so that the value isn't taken for a host), which of them name a
host, what the operands are, and what the client reaches when nothing names a host. Read from each
client's manual page or `--help`; a new client is a new row in `clients_net` or `clients_data`.
"""

from __future__ import annotations

from policies.commands.client import Client
from policies.commands.clients_data import CLOUD, DATA
from policies.commands.clients_net import NETWORK

CLIENTS: dict[str, Client] = {**NETWORK, **DATA, **CLOUD}
