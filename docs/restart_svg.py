"""Draws the README's picture of a restart, from the figures in README.md and docs/performance.md.

    python3 docs/restart_svg.py             # writes docs/images/restart.svg
    python3 docs/restart_svg.py --check     # fails if that file is out of date
"""

import pathlib
import re
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/images/restart.svg"
WIDTH, HEIGHT = 860, 348
LEFT, RIGHT = 150, 30  # of both scales
PER_MS = (WIDTH - LEFT - RIGHT) / 36  # pixels, in the upper part
BEFORE = 4  # ms that the upper part shows before the kill
ROW, BAR, TOP = 30, 18, 92
VICTIM = 2
# The background has the colours of the text's theme, so both stay readable when a page's theme differs from the browser's.
STYLE = """
text{fill:#24292f;font:13px sans-serif}.title{font-weight:600;font-size:15px}.small{font-size:12px}.on{fill:#fff}
.card{fill:#fff;stroke:#d0d7de}.run{fill:#1a7f37}.stop{fill:#9a6700}.start{fill:#0969da}.slow{fill:#cf222e}
.faint{opacity:.45}.mark{stroke:#6e7781;stroke-dasharray:3 3}.kill{stroke:#cf222e;stroke-width:3}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.on{fill:#fff}.card{fill:#0d1117;stroke:#30363d}
.run{fill:#238636}.stop{fill:#9e6a03}.start{fill:#1f6feb}.slow,.kill{fill:#da3633;stroke:#da3633}.slow{stroke:none}.mark{stroke:#8b949e}}
""".strip()


class Figures(NamedTuple):
    """Milliseconds after the kill."""

    pushed: int
    durable: int
    stopped: int
    started: int
    # In place and with Recreate, each: until new workers run, and until the ring is up.
    workers: tuple[int, int]
    ring: tuple[int, int]


def found(pattern: str, text: str, page: str) -> tuple[int, ...]:
    match = re.search(pattern, text, re.S)
    if match is None:
        raise SystemExit(f"{page} has no figures like: {pattern}")
    return tuple(int(figure) for figure in match.groups())


def read() -> Figures:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    performance = " ".join((ROOT / "docs/performance.md").read_text(encoding="utf-8").split())
    steps = ["is pushed to every node", "it is durable", "all workers have stopped, and are released", "four new processes run"]
    inside = r"[^#]*?".join(rf"{step} \| (\d+) \|" for step in steps)
    workers = found(r"\| until 4 new workers run \| (\d+) ms \| (\d+) ms \|", readme, "README.md")
    ring = found(r"\| until the ring is up again[^|]*\| (\d+) ms \| (\d+) ms \|", readme, "README.md")
    return Figures(*found(inside, performance, "docs/performance.md"), workers=workers[:2], ring=ring[:2])


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    kind = f' class="{kind}"' if kind else ""
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y}"{kind}{place}>{words}</text>'


def bar(x: float, y: float, width: float, kind: str) -> str:
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" class="{kind}"/>'


def at(milliseconds: float) -> float:
    return LEFT + (milliseconds + BEFORE) * PER_MS


def inside(figures: Figures) -> list[str]:
    """The workers of one restart, on a scale of milliseconds."""
    bottom = TOP + 4 * ROW
    end = WIDTH - RIGHT
    parts = [text(20, 32, "One of four workers is killed: all start again in the same pods", "title")]
    marks = (0, figures.pushed, figures.durable, figures.stopped, figures.started)
    for moment in marks:
        parts.append(f'<path class="mark" d="M{at(moment):.1f} {TOP - 8}V{bottom}"/>')
    for words, moment, y, anchor in (
        ("killed", 0, TOP - 14, "end"),
        ("all nodes told to stop", figures.pushed, TOP - 14, "start"),
        ("generation stored", figures.durable, TOP - 14, "end"),
        ("all parked: release", figures.stopped, TOP - 30, "start"),
        ("4 new processes", figures.started, TOP - 14, "start"),
    ):
        parts.append(text(at(moment) + (-4 if anchor == "end" else 4), y, words, "small", anchor))
    for worker in range(4):
        y = TOP + worker * ROW
        stops = 0 if worker == VICTIM else figures.pushed
        parts += [
            text(20, y + 14, f"worker {worker}"),
            bar(LEFT, y, at(stops) - LEFT, "run"),
            bar(at(stops), y, at(figures.stopped) - at(stops), "stop"),
            bar(at(figures.stopped), y, at(figures.started) - at(figures.stopped), "start"),
            bar(at(figures.started), y, end - at(figures.started), "run"),
        ]
        if worker == 0:
            parts += [
                text(at((figures.pushed + figures.stopped) / 2), y + 14, "stops and parks", "small on", "middle"),
                text(at((figures.stopped + figures.started) / 2), y + 14, "starts", "small on", "middle"),
                text((at(figures.started) + end) / 2, y + 14, "runs", "small on", "middle"),
            ]
        if worker == VICTIM:
            x = at(0)
            parts.append(f'<path class="kill" d="M{x - 5:.1f} {y + 4}l10 10m0 -10l-10 10"/>')
    for moment in marks:
        parts.append(text(at(moment), bottom + 14, f"{moment}", "small", "middle"))
    parts.append(text(end, bottom + 14, "ms", "small", "end"))
    return parts


def compared(figures: Figures) -> list[str]:
    """Both ways to restart, on one scale."""
    y = TOP + 4 * ROW + 62
    scale = (WIDTH - LEFT - RIGHT) / max(figures.ring)
    parts = [text(20, y - 16, "The same job restarted in place and with Recreate, to scale", "title")]
    for row, (name, kind) in enumerate((("in place", "start"), ("Recreate", "slow"))):
        workers, ring = figures.workers[row], figures.ring[row]
        top = y + row * (ROW + 6)
        words = f"new workers after {workers} ms, ring up after {ring} ms"
        parts += [
            text(20, top + 14, name),
            bar(LEFT, top, workers * scale, kind),
            bar(LEFT + workers * scale, top, (ring - workers) * scale, f"{kind} faint"),
        ]
        width = ring * scale
        wide = width > (WIDTH - LEFT) / 2
        parts.append(text(LEFT + (10 if wide else width + 10), top + 14, words, "small on" if wide else "small"))
    return parts


def draw(figures: Figures) -> str:
    words = (
        f"When one of four workers is killed, all four run again after {figures.workers[0]} ms in place, "
        f"and after {figures.workers[1]} ms with Recreate."
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    card = f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6"/>'
    body = [*inside(figures), *compared(figures)]
    return "\n".join([head, f"<title>{words}</title>", f"<style>{STYLE}</style>", card, *body, "</svg>", ""])


def main() -> None:
    drawn = draw(read())
    if sys.argv[1:] == ["--check"]:
        if not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != drawn:
            raise SystemExit(f"{PICTURE.relative_to(ROOT)} is out of date: run python3 docs/restart_svg.py")
        return
    PICTURE.write_text(drawn, encoding="utf-8")
    print(f"written to {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
