"""Rules and mutators: pure functions over JSON. No I/O, no clock, no HTTP, no Kubernetes client."""
