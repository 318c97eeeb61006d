"""A dashboard that answers as none does: slowly, without an end, with 10 MB, with nonsense."""

import itertools
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WAY = sys.argv[1]
SESSIONS = itertools.count()


class Head(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if "gcs_healthz" in self.path:
            self.say(b"success")
        else:
            getattr(self, WAY)()

    do_POST = do_GET

    def log_message(self, *_):
        pass

    def begin(self, code=200, **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def say(self, body, code=200):
        self.begin(code, Content_Length=str(len(body)))
        self.wfile.write(body)

    def slow(self):
        self.begin(Content_Length="1000000")
        while True:
            self.wfile.write(b" ")
            time.sleep(0.2)

    def endless(self):
        self.begin(Transfer_Encoding="chunked")
        while True:
            self.wfile.write(b"10000\r\n" + b" " * 65536 + b"\r\n")

    def huge(self):
        self.say(b'{"status": "RUNNING", "message": "' + b"m" * 10_000_000 + b'"}')

    def long(self):
        # A new session each time: Ray was restarted.
        session = b"s" * 1000 + str(next(SESSIONS)).encode()
        message = b"m" * 900_000
        self.say(b'{"status": "FAILED", "message": "' + message + b'", "session_name": "' + session + b'"}')

    def nonsense(self):
        self.say(b'{"status":' * 50_000)

    def elsewhere(self):
        self.begin(302, Location="http://169.254.169.254/", Content_Length="0")

    def head(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for number in itertools.count():
            self.wfile.write(b"X-%d: %s\r\n" % (number, b"h" * 1000))


ThreadingHTTPServer(("", 8265), Head).serve_forever()
