"""Headless Chromium, driven by the DevTools protocol over a pipe. Nothing but the standard library.

Messages are JSON with a zero byte after each; the browser reads them from file descriptor 3 and writes to 4.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PATIENCE = 30


class Broken(Exception):
    """The browser refused a command, or has gone."""


class Browser:
    """One browser with one page. What the page logs, throws and asks for is kept."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="page-browser-")
        (their_read, our_write), (our_read, their_write) = os.pipe(), os.pipe()

        def hand_over():
            # Copies far away first: one of the originals may be 3 or 4.
            read, write = os.dup2(their_read, 100), os.dup2(their_write, 101)
            os.dup2(read, 3)
            os.dup2(write, 4)

        flags = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe",
            # Every name is this machine, as with an attacker's DNS server.
            "--host-resolver-rules=MAP * 127.0.0.1", "--window-size=1100,800", f"--user-data-dir={self.profile}", "about:blank",
        ]
        self.process = subprocess.Popen(
            [chromium(), *flags], preexec_fn=hand_over, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        os.close(their_read)
        os.close(their_write)
        self.read_from, self.write_to, self.unread, self.number = our_read, our_write, b"", 0
        self.logged, self.requests, self.session = [], [], None
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.do(f"{domain}.enable")

    def do(self, method, **parameters):
        """One command; what happens until its answer is taken note of."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_to, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            answer = self.next(until)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise Broken(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def next(self, until):
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.read_from], [], [], max(0, until - time.monotonic()))
            read = os.read(self.read_from, 1 << 20) if ready else b""
            if not read:
                raise Broken("the browser does not answer")
            self.unread += read
        message, _, self.unread = self.unread.partition(b"\0")
        return json.loads(message)

    def note(self, event):
        method, said = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.logged.append(said["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.logged.append(" ".join(str(argument.get("value", "")) for argument in said["args"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.logged.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")

    def open(self, url):
        failed = self.do("Page.navigate", url=url).get("errorText")
        if failed:
            raise Broken(f"{url}: {failed}")

    def value(self, script):
        """What an expression is in the page."""
        answer = self.do("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise Broken(answer["exceptionDetails"].get("exception", {}).get("description", script))
        return answer["result"].get("value")

    def wait(self, script):
        """Waits until an expression is true."""
        until = time.monotonic() + PATIENCE
        while not (value := self.value(f"(() => {{ try {{ return {script} }} catch (error) {{ return null }} }})()")):
            if time.monotonic() > until:
                raise Broken(f"never true: {script}; the page says: {self.value('document.body.innerText')}; logged: {self.logged}")
            time.sleep(0.02)
        return value

    def key(self, key):
        for kind in ("keyDown", "keyUp"):
            self.do("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def size(self, width, height):
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, dark):
        self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.do("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        try:
            self.session = None
            self.do("Browser.close")
            self.process.wait(10)
        except (Broken, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.read_from)
        os.close(self.write_to)
        shutil.rmtree(self.profile, ignore_errors=True)


def chromium():
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        raise Broken("no Chromium on this machine: .ci/deps installs it")
    return found
