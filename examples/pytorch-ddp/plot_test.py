"""Draws small curves with plot.py.

    python3 examples/pytorch-ddp/plot_test.py
"""

import unittest
from xml.etree import ElementTree

import plot

# Four steps a second, none for five seconds after the kill, then steps from 8 on.
CURVE = [[step / 4, step, 1 / (step + 1)] for step in range(10)] + [[7 + step / 4, step, 1 / (step + 1)] for step in range(8, 20)]
RUN = {"curve": CURVE, "kills": [2.5], "stepped": [6.5]}


class PlotTest(unittest.TestCase):
    def test_curves_have_gaps_where_nothing_was_done(self) -> None:
        picture = ElementTree.fromstring(plot.draw({"workers": 4, "standby": RUN, "inPlace": RUN, "recreate": RUN}))
        drawn = {
            kind: [path.get("d", "") for path in picture.iter("{http://www.w3.org/2000/svg}path") if path.get("class") == kind]
            for kind in ("curve", "gap")
        }
        # The lines of the legend, and two pieces of each curve.
        self.assertEqual([path.count("M") for path in drawn["curve"]], [1, 2] * 3)
        self.assertEqual([path.count("M") for path in drawn["gap"]], [1] * 3)
        texts = [text.text or "" for text in picture.iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("in place: 12 s in all, 6.5 s from a kill to the next step of all ranks (median)", texts)
        self.assertTrue(any(text.startswith("in place, from standbys: ") for text in texts), texts)
        self.assertEqual(len(list(picture.iter("{http://www.w3.org/2000/svg}title"))), 3)

    def test_a_long_curve_has_few_points_and_keeps_its_ends(self) -> None:
        curve = [[step / 100, step, 1.0] for step in range(10_000)]
        points = plot.smooth(curve)
        self.assertLess(len(points), plot.POINTS + 2)
        self.assertEqual(points[-1], (curve[-1][0], 1.0))
        self.assertLess(points[0][0], 0.2)


if __name__ == "__main__":
    unittest.main()
