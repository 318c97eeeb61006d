"""Free ports for the tests of the examples."""

import random
import socket


def free_ports(count: int) -> list[int]:
    """Free ports, below those that the kernel gives to clients: these may be taken at any moment."""
    ports: list[int] = []
    for port in random.sample(range(20000, 30000), 1000):
        try:
            socket.create_server(("", port)).close()
        except OSError:
            continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError("too few ports are free")
