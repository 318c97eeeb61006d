"""Runs a program on a terminal of its own, and writes what it prints there, as it comes, to standard output.

    python3 terminal.py ROWS COLUMNS PROGRAM [ARGUMENT ...]

It ends with the program's exit code. When it is killed the terminal is gone, and the program gets SIGHUP.
"""

import fcntl
import os
import pty
import struct
import sys
import termios

rows, columns, *command = sys.argv[1:]
child, terminal = pty.fork()
if child == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", int(rows), int(columns), 0, 0))
    os.execvp(command[0], command)
while True:
    try:
        said = os.read(terminal, 65536)
    except OSError:  # Linux says so, once nobody has the terminal open.
        break
    os.write(1, said)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
