"""Storage: from a URI to a complete, verified tree of files. Knows nothing of servers or config."""
