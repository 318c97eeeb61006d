"""The status page in a real browser: the server of the control plane, with groups that the test tells it of.

    python3 control-plane/tests/page/page_test.py [-v]          the program is built before: `make page`
    python3 control-plane/tests/page/page_test.py images DIR    writes the pictures of the documentation

`STATUS_PAGE` names the program, `cargo build -p lockstep-control-plane --example status_page`.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from browser import Broken, Browser  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("STATUS_PAGE", str(ROOT / "target/debug/examples/status_page"))
HOSTILE = "<img src=x onerror=alert(1)>"


class Server:
    """The page's server. It shows what it is told."""

    def __init__(self, address="127.0.0.1:0"):
        self.process = subprocess.Popen([PROGRAM, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.url = self.process.stdout.readline().strip()
        assert self.url, f"{PROGRAM} did not start"

    @property
    def address(self):
        return self.url.removeprefix("http://")

    def do(self, what, **told):
        self.process.stdin.write(json.dumps({"do": what, **told}) + "\n")
        assert self.process.stdout.readline() == "ok\n", what

    def lead(self):
        self.do("lead")

    def show(self, name="ring", phase="InSync", generation=1, stages=(("workers", 2, 4),), **more):
        stages = [{"name": stage, "jobs": jobs, "workers": workers} for stage, jobs, workers in stages]
        self.do("show", **{"namespace": "team", "name": name, "phase": phase, "generation": generation, "stages": stages, **more})

    def restarted(self, generation, cause, at, namespace="team", name="ring", workers=8):
        self.do("restarted", namespace=namespace, name=name, generation=generation, cause=cause, workers=workers, at=at)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def why(job="ring-workers-0", index=1, pod="ring-workers-0-1-x7k2p", node="node-1", seconds=7):
    return {"job": job, "index": index, "pod": pod, "node": node, "seconds": seconds}


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.server = Server()
        self.addCleanup(lambda: self.server.end())
        self.browser.open("about:blank")
        self.browser.logged.clear()
        self.browser.requests.clear()
        self.browser.size(1100, 800)
        self.expected = ""

    def tearDown(self):
        self.browser.value("1")
        logged = [line for line in self.browser.logged if not (self.expected and self.expected in line)]
        self.assertEqual(logged, [])
        elsewhere = [url for url in self.browser.requests if not url.startswith((f"{self.server.url}/", "about:"))]
        self.assertEqual(elsewhere, [])

    def open(self, path="/"):
        self.browser.open(f"{self.server.url}{path}")
        self.browser.wait("document.getElementById('live').textContent.includes('live')")

    def text(self, selector):
        return self.browser.value(f"document.querySelector({json.dumps(selector)}).innerText")

    def says(self, selector, text):
        self.browser.wait(f"document.querySelector({json.dumps(selector)}).innerText.includes({json.dumps(text)})")

    def test_the_list_shows_groups_and_finds_them(self):
        self.server.lead()
        self.server.show("ring", cause=why(), restarts=1, generation=2)
        self.server.show("rope", phase="Stopping", generation=7, but={"rope-workers-0/1": "Exited"})
        self.open()
        self.browser.wait("document.querySelectorAll('#list tbody tr').length === 2")
        rows = self.browser.value("[...document.querySelectorAll('#list tbody tr')].map((row) => row.innerText)")
        for part in ("team/ring", "✓ InSync", "8 of 8", "2", "1 of 100", "7s ago, by Process: worker ring-workers-0[1]/worker exited with code 3"):
            self.assertIn(part, rows[0])
        for part in ("team/rope", "▾ Stopping", "7 of 8"):
            self.assertIn(part, rows[1])
        self.assertEqual(self.text("#found"), "2 JobSets")

        self.browser.value("document.querySelector('#search').focus()")
        self.browser.do("Input.insertText", text="Rope")
        self.browser.wait("document.querySelectorAll('#list tbody tr').length === 1")
        self.assertEqual(self.text("#found"), "1 of 2 found")
        self.browser.do("Input.insertText", text="<")
        self.says("#found", "0 of 2 found")

    def test_where_there_is_nothing_it_tells_what_to_do(self):
        self.server.lead()
        self.open()
        self.says("#nothing", "restartStrategy: InPlaceRestart")
        self.server.show("ring")
        self.browser.wait("document.querySelectorAll('#list tbody tr').length === 1 && document.querySelector('#nothing').hidden")

    def test_a_group_changes_live(self):
        self.server.lead()
        stages = (("driver", 1, 1), ("workers", 2, 8))
        self.server.show("ring", generation=3, stages=stages)
        self.open("/#/team/ring")
        self.browser.wait("document.querySelectorAll('#stages .cell').length === 17")
        self.assertEqual(self.text("#fact-generation"), "3")
        self.assertEqual(self.text("#legend"), "Running 17")
        boxes = self.browser.value("[...document.querySelectorAll('#graph a')].map((box) => box.getAttribute('aria-label'))")
        self.assertEqual(boxes, ["driver: 1 of 1 Job ready, 1 of 1 worker up", "workers: 2 of 2 Jobs ready, 16 of 16 workers up"])
        self.assertIn("driver is ready", self.browser.value("document.querySelector('#graph .edge title').textContent"))
        self.browser.value("window.sameDocument = true")

        but = {f"ring-workers-{job}/{index}": "Parked" for job in range(2) for index in range(8)} | {"ring-workers-0/1": "Exited"}
        self.server.show("ring", phase="Stopping", generation=4, stages=stages, but=but, cause=why(seconds=0))
        self.browser.wait("document.querySelector('#fact-generation').innerText === '4'")
        self.assertIn("▾ Stopping", self.text("#facts"))
        legend = self.browser.value("[...document.querySelectorAll('#legend li')].map((state) => state.lastChild.textContent)")
        self.assertEqual(legend, ["Running 1", "Parked 15", "Exited 1"])
        exited = self.browser.value("document.querySelector('#stages .cell.bad').textContent")
        self.assertEqual(exited, "ring-workers-0[1]/worker: Exited (has failed), generation 4, pod ring-workers-0-1-x7k2p, node node-1×")

        self.server.restarted(generation=4, cause=why(seconds=1), at=[1, 2, 16, 17, 18, 18, 31])
        self.server.show("ring", generation=4, restarts=1, stages=stages, cause=why(seconds=1))
        self.says("#restarts tbody", "31.0 ms")
        self.assertIn("Process", self.text("#restarts tbody"))
        phases = self.browser.value("[...document.querySelectorAll('#timeline text[text-anchor=end]')].map((text) => text.textContent)")
        self.assertEqual(phases, ["detect", "push", "write", "stop", "park", "release", "run"])
        self.assertEqual(self.text("#legend"), "Running 17")
        self.assertIs(self.browser.value("window.sameDocument"), True)

        # Another restart: the newest is drawn, until the user picks one.
        self.server.restarted(generation=5, cause=why(seconds=0), at=[1, 2, 3, 4, 5, 6, 99])
        self.server.show("ring", generation=5, restarts=2, stages=stages, cause=why(seconds=0))
        self.browser.wait("document.querySelector('#timeline svg').getAttribute('aria-label').startsWith('Restart to generation 5')")
        self.browser.value("document.querySelector('[aria-label=\"Timeline of the restart to generation 4\"]').click()")
        self.browser.wait("document.querySelector('#timeline svg').getAttribute('aria-label').startsWith('Restart to generation 4')")

        self.server.do("gone", namespace="team", name="ring")
        self.says("#gone", "manages no JobSet of this name")

    def test_a_worker_says_how_it_was_started_and_what_waits(self):
        self.server.lead()
        self.server.show("ring", stages=(("workers", 1, 2),), standbys={"ring-workers-0/1": [2, 4]})
        self.open("/#/team/ring")
        self.browser.wait("document.querySelectorAll('#stages .cell').length === 2")
        first, second = self.browser.value("[...document.querySelectorAll('#stages .cell title')].map((title) => title.textContent)")
        self.assertNotIn("standby", first)
        self.assertIn(", started from standby (1.2 s ahead), 2 of 4 standbys ready: memory is short", second)

    def test_workers_are_reached_by_the_keyboard(self):
        self.server.lead()
        self.server.show("ring", but={"ring-workers-0/1": "Lost"})
        self.open("/#/team/ring")
        self.browser.wait("document.querySelectorAll('#stages .cell').length === 8")
        self.browser.value("document.querySelector('#graph a').focus()")
        self.browser.value("document.querySelector('#stages svg').focus()")
        self.says("#worker", "ring-workers-0[0]/worker: Running")
        self.browser.key("ArrowRight")
        self.says("#worker", "ring-workers-0[1]/worker: Lost (its container is gone)")
        self.browser.key("End")
        self.says("#worker", "ring-workers-1[3]/worker: Running")
        self.assertEqual(self.browser.value("document.querySelectorAll('.cell.chosen').length"), 1)

    def test_thousands_of_workers_stay_usable(self):
        self.server.lead()
        stages = (("driver", 1, 1), ("workers", 40, 125))
        self.server.show("ring", stages=stages)
        self.open("/#/team/ring")
        self.browser.wait("document.querySelectorAll('#stages .cell').length === 5001")
        self.browser.value("""(() => {
          window.longest = 0; let last = performance.now();
          const frame = (now) => { window.longest = Math.max(window.longest, now - last); last = now; requestAnimationFrame(frame); };
          requestAnimationFrame(frame);
        })()""")
        begun = time.monotonic()
        but = {f"ring-workers-{job}/{index}": "Parked" for job in range(40) for index in range(125)}
        self.server.show("ring", phase="Stopping", generation=2, stages=stages, but=but)
        self.says("#legend", "Parked 5000")
        took = time.monotonic() - begun
        print(f"5,001 workers: shown {took * 1000:.0f} ms after a change of all, longest frame {self.browser.value('window.longest'):.0f} ms", file=sys.stderr)
        self.assertLess(took, 10)
        self.assertLessEqual(self.browser.value("document.documentElement.scrollWidth"), 1100)

    def test_names_are_text(self):
        self.server.lead()
        cause = why(job=HOSTILE, pod=HOSTILE, node=HOSTILE)
        self.server.show(HOSTILE, cause=cause)
        self.server.show("ring", stages=((HOSTILE, 1, 2),), cause=cause)
        self.server.restarted(generation=1, cause=cause, at=[1, 2, 3, 4, 5, 6, 7])
        self.server.show("ring", stages=((HOSTILE, 1, 2), (f"'\"&{HOSTILE}", 1, 2)), cause=cause)
        self.open()
        self.browser.wait("document.querySelectorAll('#list tbody tr').length === 2")
        self.assertIn(f"team/{HOSTILE}", self.text("#list"))
        self.assertIn(f"(pod {HOSTILE}", self.text("#list"))
        self.browser.value("location.hash = '#/team/ring'")
        self.browser.wait("document.querySelectorAll('#stages .cell').length === 4")
        self.assertIn(HOSTILE, self.text("#stages"))
        self.assertIn(HOSTILE, self.text("#restarts"))
        self.assertIn(HOSTILE, self.browser.value("document.querySelector('#stages .cell title').textContent"))
        self.assertEqual(self.browser.value("document.querySelectorAll('main img, [onerror], script:not([src])').length"), 0)
        # Even a mistake of the page would not make markup of it: the browser refuses that.
        self.assertIs(self.browser.value("(() => { try { document.body.innerHTML = '<b>'; return false } catch (error) { return true } })()"), True)
        self.expected = "requires 'TrustedHTML' assignment"

    def test_a_lost_connection_is_shown_and_comes_back(self):
        self.server.lead()
        self.server.show("ring", generation=3)
        self.open("/#/team/ring")
        self.browser.wait("document.querySelector('#fact-generation').innerText === '3'")
        self.assertIs(self.browser.value("document.querySelector('#lost').hidden"), True)
        address = self.server.address
        self.server.end()
        self.browser.wait("!document.querySelector('#lost').hidden")
        self.assertIn(f"port-forward deployment/lockstep-control-plane {address.split(':')[1]}", self.text("#lost"))
        self.assertEqual(self.text("#fact-generation"), "3")
        self.assertIn("not connected", self.text("#live"))
        self.server = Server(address)
        self.server.lead()
        self.server.show("ring", generation=9)
        self.browser.wait("document.querySelector('#fact-generation').innerText === '9' && document.querySelector('#lost').hidden")
        # What the browser itself says of the connection is no mistake of the page.
        self.expected = "Failed to load resource: net::ERR_"

    def test_one_page_too_many_says_so_and_goes_on_when_there_is_room(self):
        self.server.lead()
        self.server.show("ring")
        others = [urllib.request.urlopen(f"{self.server.url}/events") for _ in range(64)]
        for other in others:
            self.addCleanup(other.close)
        self.browser.open(f"{self.server.url}/")
        self.browser.wait("!document.querySelector('#full').hidden")
        self.assertIn("64 pages are already open, which is the limit", self.text("#full"))
        self.assertIn("no room", self.text("#live"))
        self.assertIs(self.browser.value("document.querySelector('#lost').hidden"), True)
        for other in others:
            other.close()
        self.browser.wait("document.querySelector('#full').hidden && document.querySelectorAll('#list tbody tr').length === 1")
        self.assertIn("live", self.text("#live"))

    def test_a_replica_that_does_not_lead_says_who_does(self):
        self.server.do("leader", name="lockstep-control-plane-7d9f8-other")
        self.open()
        self.says("#follower", "lockstep-control-plane-7d9f8-other does.")
        self.assertIn("port-forward pod/lockstep-control-plane-7d9f8-other", self.text("#follower"))
        self.assertIs(self.browser.value("document.querySelector('#groups').hidden"), True)
        self.server.lead()
        self.browser.wait("document.querySelector('#follower').hidden && !document.querySelector('#nothing').hidden")

    def test_another_name_of_this_machine_is_another_site(self):
        self.server.lead()
        port = self.server.address.split(":")[1]
        self.browser.open(f"http://evil.example:{port}/state")
        self.says("body", "only served for the host localhost")
        self.browser.open("about:blank")
        self.browser.requests.clear()
        self.expected = "421"

    def test_contrast_and_labels_hold_in_light_and_dark(self):
        self.server.lead()
        but = {f"ring-workers-0/{place}": phase for place, phase in enumerate(("Exited", "Parked", "Done", "Unlinked"))}
        self.server.show("ring", stages=(("workers", 1, 6),), but=but, cause=why())
        self.server.restarted(generation=1, cause=why(), at=[1, 2, 3, 4, 5, 6, 7])
        self.server.show("ring", stages=(("workers", 1, 6),), but=but, cause=why())
        self.open("/#/team/ring")
        self.browser.wait("document.querySelectorAll('#stages .cell').length === 6")
        for dark in (False, True):
            self.browser.dark(dark)
            self.assertEqual(self.browser.value(LOW_CONTRAST), [], "dark" if dark else "light")
        self.browser.dark(False)
        unnamed = "[...document.querySelectorAll('input, button, a, svg[tabindex]')].filter((one) => !(one.ariaLabel || one.innerText || one.labels?.length || one.textContent)).length"
        self.assertEqual(self.browser.value(unnamed), 0)
        signs = self.browser.value("[...document.querySelectorAll('#stages .cell')].map((cell) => cell.querySelector('text').textContent)")
        self.assertEqual(signs, ["×", "=", "✓", "?", "", ""], "a state is told by more than its colour")


# Texts whose contrast to what is behind them is below 4.5, as WCAG counts it; signs on squares against their squares.
LOW_CONTRAST = """(() => {
  const paint = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (colour) => { paint.clearRect(0, 0, 1, 1); paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1); return [...paint.getImageData(0, 0, 1, 1).data]; };
  const light = (rgb) => { const [r, g, b] = rgb.map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const over = (top, under) => under.map((c, at) => (top[at] * top[3] + c * (255 - top[3])) / 255);
  const behind = (element) => {
    if (element.closest('.cell')) return over(rgba(getComputedStyle(element.closest('.cell').querySelector('rect')).fill), [255, 255, 255]);
    if (element.closest('#graph a')) return over(rgba(getComputedStyle(element.closest('a').querySelector('rect')).fill), [255, 255, 255]);
    let colours = [];
    for (let at = element; at; at = at.parentElement) colours.push(rgba(getComputedStyle(at).backgroundColor));
    return colours.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const low = [];
  for (const element of document.querySelectorAll('body *')) {
    if (!element.checkVisibility() || element.closest('title') || ![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    const style = getComputedStyle(element);
    const under = behind(element);
    const [a, b] = [light(over(rgba(element instanceof SVGElement ? style.fill : style.color), under)), light(under)];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) low.push(`${element.textContent.trim().slice(0, 30)}: ${contrast.toFixed(1)}`);
  }
  return low;
})()"""


def images(directory):
    """The pictures of docs/status-page.md."""
    server, browser = Server(), Browser()
    try:
        server.lead()
        stages = (("driver", 1, 1), ("loaders", 2, 3), ("workers", 4, 16))
        pod = {"job": "llama-workers-2", "index": 5, "pod": "llama-workers-2-5-x7k2p", "node": "node-5"}
        server.show("llama", namespace="research", stages=stages)
        for generation, seconds, at in ((1, 5400, [1, 2, 18, 9, 18, 18, 34]), (2, 1260, [2, 4, 15, 22, 23, 23, 41]), (3, 42, [1, 2, 16, 18, 18, 18, 31])):
            server.restarted(generation, {**pod, "seconds": seconds}, at, "research", "llama", 71)
        server.show("llama", namespace="research", generation=3, restarts=3, stages=stages, cause={**pod, "seconds": 42})
        but = {f"ring-workers-{job}/{index}": "Parked" for job in range(2) for index in range(6)} | {"ring-workers-1/2": "Exited", "ring-workers-1/1": "Stopping"}
        cause = why(job="ring-workers-1", index=2, pod="ring-workers-1-2-9hjwq", seconds=0)
        server.show("ring", phase="Stopping", generation=12, restarts=11, stages=(("workers", 2, 8),), but=but, cause=cause)
        waiting = {f"tuning-7-workers-0/{index}": "Pending" for index in range(4)}
        server.show("tuning-7", phase="Suspended", generation=0, stages=(("workers", 1, 4),), but=waiting)
        picture(browser, server.url, "#list tbody tr", 3, f"{directory}/status-page-list.png")
        picture(browser, f"{server.url}/#/research/llama", "#stages .cell", 71, f"{directory}/status-page-group.png")
        browser.dark(True)
        picture(browser, f"{server.url}/#/team/ring", "#stages .cell", 16, f"{directory}/status-page-dark.png")
    finally:
        browser.close()
        server.end()


def picture(browser, url, selector, elements, path):
    """Writes a picture of the whole page, as soon as it has this number of elements."""
    browser.size(1100, 2000)
    browser.open("about:blank")
    browser.open(url)
    browser.wait(f"document.querySelectorAll({json.dumps(selector)}).length === {elements}")
    browser.size(1100, browser.value("Math.ceil(document.body.getBoundingClientRect().height)"))
    browser.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    browser.screenshot(path)


if __name__ == "__main__":
    if sys.argv[1:2] == ["images"]:
        images(sys.argv[2])
    else:
        unittest.main()
