"""Every preset that a package registry lets us try: the real server, asked as the kubelet would ask it."""
