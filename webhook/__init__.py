"""The admission webhook: the decision, the server, and the command line.

Imports: no other package of this repository.
"""
