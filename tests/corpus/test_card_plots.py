import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.card_plots import KEPT, REMOVED, Bar, bars, histogram

SVG = "{http://www.w3.org/2000/svg}"


def _rectangles(svg: str, colour: str) -> list[dict[str, float]]:
    """x, y, width and height of the rectangles of a colour."""
    return [
        {name: float(shape.get(name)) for name in ("x", "y", "width", "height")}
        for shape in ET.fromstring(svg).iter(f"{SVG}rect")
        if shape.get("fill") == colour
    ]


def _texts(svg: str) -> list[str]:
    return [shape.text or "" for shape in ET.fromstring(svg).iter(f"{SVG}text")]


def test_bars_are_as_long_as_their_values_and_follow_each_other():
    svg = bars("t", [Bar("a", [(30, KEPT), (10, REMOVED)], "30"), Bar("b", [(20, KEPT)], "20")])
    (long, short), (rest,) = _rectangles(svg, KEPT), _rectangles(svg, REMOVED)
    assert long["width"] / short["width"] == pytest.approx(1.5, rel=1e-3)
    assert long["width"] / rest["width"] == pytest.approx(3, rel=1e-3)
    assert rest["x"] == pytest.approx(long["x"] + long["width"], abs=0.11)
    assert short["y"] > long["y"]


def test_smallest_bar_is_seen_and_none_is_drawn_for_nothing():
    rows = [Bar("a", [(1e9, KEPT)], ""), Bar("b", [(1, REMOVED)], ""), Bar("c", [(0, REMOVED)], "")]
    assert [each["width"] for each in _rectangles(bars("t", rows), REMOVED)] == [1, 0]


def test_histogram_is_as_high_as_its_counts():
    svg = histogram("t", ["0", "1"], {"kept": ([5, 10], KEPT), "removed": ([0, 2], REMOVED)})
    kept, removed = _rectangles(svg, KEPT)[:2], _rectangles(svg, REMOVED)[:2]
    assert kept[1]["height"] == pytest.approx(2 * kept[0]["height"], rel=1e-3)
    assert removed[1]["height"] == pytest.approx(kept[1]["height"] / 5, rel=1e-2)
    assert removed[0]["height"] == 0
    assert kept[0]["y"] + kept[0]["height"] == pytest.approx(kept[1]["y"] + kept[1]["height"])


@given(st.text(), st.text())
def test_any_name_gives_a_picture_that_can_be_read(title, label):
    svg = bars(title, [Bar(label, [(1, KEPT)], label)])
    assert len(_texts(svg)) == 3
    histogram(title, [label, label], {label: ([1, 2], KEPT)}).encode()


def test_wide_characters_and_long_names_stay_inside():
    for label in ("字" * 100, "x" * 100, "short"):
        svg = bars("t", [Bar(label, [(1, KEPT)], "1,234,567 (100.0 % of its input)")])
        (bar,) = _rectangles(svg, KEPT)
        assert 0 < bar["x"] < bar["x"] + bar["width"] < 760


def test_nothing_to_show_gives_an_empty_picture():
    assert _rectangles(bars("t", []), KEPT) == []
    assert _texts(histogram("t", [], {}))[0] == "t"


def test_labels_of_many_bins_do_not_overlap():
    svg = histogram("t", [f"{i:,}" for i in range(1000, 1060)], {"n": ([1] * 60, KEPT)})
    shown = [text for text in _texts(svg) if text.startswith("1,0")]
    assert 5 < len(shown) < 20
