"""Draws the loss curves that `make demo-ddp` has measured, as an SVG file.

    python3 examples/pytorch-ddp/plot.py target/bench/ddp.json docs/images/pytorch-ddp.svg
"""

import json
import math
import pathlib
import sys
from typing import Any

WIDTH, HEIGHT = 860, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 64, 48  # around the plot
GAP = 2.0  # seconds without a step that are shown as a gap
POINTS = 400  # of a curve at most
CURVES = (("standby", "in place, from standbys", "#2e8b57"), ("inPlace", "in place", "#1668c4"), ("recreate", "Recreate", "#d1622b"))


class Axes:
    """Maps seconds and losses to the picture. The scale of losses is logarithmic."""

    def __init__(self, seconds: float, losses: list[float]) -> None:
        self.seconds = seconds
        self.low, self.high = math.log10(min(losses)) - 0.03, math.log10(max(losses)) + 0.03

    def x(self, seconds: float) -> float:
        return round(LEFT + seconds / self.seconds * (WIDTH - LEFT - RIGHT), 1)

    def y(self, loss: float) -> float:
        share = (self.high - math.log10(loss)) / (self.high - self.low)
        return round(TOP + share * (HEIGHT - TOP - BOTTOM), 1)

    def grid(self) -> list[str]:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        parts = []
        for tick in range(0, int(self.seconds) + 1, 10 if self.seconds < 200 else 60):
            x = self.x(tick)
            parts.append(f'<path class="grid" d="M{x} {TOP}V{bottom}"/><text x="{x}" y="{bottom + 18}" text-anchor="middle">{tick}</text>')
        for loss in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0):
            if self.low <= math.log10(loss) <= self.high:
                y = self.y(loss)
                parts.append(f'<path class="grid" d="M{LEFT} {y}H{right}"/><text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{loss:g}</text>')
        parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" text-anchor="middle">seconds since the first step</text>')
        parts.append(f'<text transform="translate(16 {(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">loss of a step</text>')
        return parts


def smooth(curve: list[list[float]]) -> list[tuple[float, float]]:
    """Seconds and losses. Close ones are replaced by their mean, but never across a gap."""
    points: list[tuple[float, float]] = []
    share = max(1, len(curve) // POINTS)
    group: list[list[float]] = []
    for index, entry in enumerate(curve):
        group.append(entry)
        ends = index + 1 == len(curve) or curve[index + 1][0] - entry[0] > GAP
        if ends or len(group) == share:
            points.append((group[-1][0] if ends else sum(e[0] for e in group) / len(group), sum(e[2] for e in group) / len(group)))
            group = []
    return points


def path(axes: Axes, points: list[tuple[float, float]], gap: float) -> tuple[str, str]:
    """The curve with its gaps."""
    drawn, gaps, last = "", "", None
    for seconds, loss in points:
        here = f"{axes.x(seconds)} {axes.y(loss)}"
        if last is None or seconds - last[0] > gap:
            if last is not None:
                gaps += f"M{axes.x(last[0])} {axes.y(last[1])}L{here}"
            drawn += f"M{here}"
        else:
            drawn += f"L{here}"
        last = (seconds, loss)
    return drawn, gaps


def draw(results: dict[str, Any]) -> str:
    curves = {key: results[key]["curve"] for key, _, _ in CURVES}
    axes = Axes(max(curve[-1][0] for curve in curves.values()), [loss for curve in curves.values() for _, loss in smooth(curve)])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" fill="#333">',
        "<style>.grid{stroke:#e4e4e4}.curve{fill:none;stroke-width:1.8}.gap{fill:none;stroke-width:1.2;stroke-dasharray:3 3}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        *axes.grid(),
    ]
    for place, (key, name, colour) in enumerate(CURVES):
        kills = results[key]["kills"]
        times = sorted(results[key]["stepped"])
        legend = f"{name}: {curves[key][-1][0]:.0f} s in all, {times[len(times) // 2]:.1f} s from a kill to the next step of all ranks (median)"
        line = 16 + 17 * place
        parts.append(f'<path class="curve" stroke="{colour}" d="M{LEFT} {line - 4}h22"/><text x="{LEFT + 30}" y="{line}">{legend}</text>')
        drawn, gaps = path(axes, smooth(curves[key]), GAP)
        parts.append(f'<path class="curve" stroke="{colour}" d="{drawn}"/><path class="gap" stroke="{colour}" d="{gaps}"/>')
        for kill in kills:
            before = [point for point in smooth(curves[key]) if point[0] <= kill] or smooth(curves[key])[:1]
            x, y = axes.x(kill), axes.y(before[-1][1])
            parts.append(f'<path stroke="{colour}" stroke-width="2" d="M{x - 4} {y - 4}l8 8m0 -8l-8 8"><title>rank killed</title></path>')
    parts.append(f'<text x="{WIDTH - RIGHT - 4}" y="{TOP + 16}" text-anchor="end">× a rank of {results["workers"]} is killed</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    source, target = map(pathlib.Path, sys.argv[1:])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"written to {target}")


if __name__ == "__main__":
    main()
