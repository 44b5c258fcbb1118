"""How starts and ends of containers went: recorded by one replica, read by all, written to one ConfigMap."""
