"""Connects to the agent's socket as fast as it can, on several threads, and sends garbage."""

import os
import random
import socket
import threading

SOCKET = "/.lockstep/run/agent.sock"
# The preface of HTTP/2, after which some of the garbage is read as frames.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def send():
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(SOCKET)
                connection.sendall(random.choice([b"", PREFACE]))
                for _ in range(random.randrange(20)):
                    connection.sendall(os.urandom(random.choice([9, 4096, 65536])))
        except OSError:
            pass


for _ in range(8):
    threading.Thread(target=send).start()
