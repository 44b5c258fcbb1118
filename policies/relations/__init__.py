"""How objects depend on each other: who waits for whom, who asks whom, what a failure takes down."""
