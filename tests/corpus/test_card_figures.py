import pytest

from jaxtrain.corpus.card_figures import distributions, global_steps
from jaxtrain.corpus.card_page import Page
from jaxtrain.corpus.distributions import Distribution


def _page(section, card) -> Page:
    page = Page()
    section(page, card)
    return page


def _counted(*values):
    distribution = Distribution()
    for value in values:
        distribution.add(value)
    return distribution.to_json()


def test_lengths_are_shown_by_powers_of_two():
    lengths = Distribution()
    lengths.bins.update({11: 3, 12: 5})
    found = {"input": {"length": lengths.to_json()}, "output": {"length": lengths.to_json()}}
    svg = _page(distributions, {"distributions": found}).plots["field-length.svg"]
    assert ">1K<" in svg
    assert ">2K<" in svg
    assert ">as read<" in svg
    assert ">written<" in svg


def test_scores_show_what_was_written_and_what_was_removed_for_them():
    found = {"output": {"score": _counted(0.9, 0.7)}, "removed": {"score": _counted(0.1, None)}}
    page = _page(distributions, {"distributions": found})
    assert ">removed by the step that measured it<" in page.plots["field-score.svg"]
    assert ">0.85<" in page.plots["field-score.svg"] or ">0.1<" in page.plots["field-score.svg"]
    assert any("nothing to count in 1 documents" in block for block in page.blocks)


def test_labels_are_shown_as_a_table():
    found = {"output": {"bucket": _counted("head", "head", "tail")}}
    page = _page(distributions, {"distributions": found})
    assert "| head | 2 |" in page.blocks[-1]
    assert "| tail | 1 |" in page.blocks[-1]


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"documents": 1234}, "| documents | 1,234 |"),
        ({"gsm8k": {"items": 5, "sha256": "f" * 64}}, "| gsm8k | 5 | ffffffffffff |"),
        ({"gsm8k": {"after": {"dirty": 2}, "rows": [7, 8]}}, "|  | after: dirty | rows |"),
        ({"gsm8k": {"after": {"dirty": 3}, "rows": [7, 8]}}, "| gsm8k | 3 | 2 |"),
        ({"n": 1, "by_kind": {"a": {"hit": 1}, "b": {"hit": 2}}}, "| b | 2 |"),
        ({"n_docs": 1}, "| n docs | 1 |"),
        ({"gsm8k": {"sha256": ["a" * 64, "b" * 64]}}, "| gsm8k | aaaaaaaaaaaa, bbbbbbbbbbbb |"),
        ({"a": {"sha256": "f" * 64} | dict.fromkeys("abcdefgh", 3)}, "|  | a |"),
        ({"n": 1, "settings": {"engine": "numpy", "b": 9}}, "| engine | numpy |"),
        ({"cluster_sizes": {}}, "## near"),
    ],
)
def test_figures_of_a_step_are_shown_by_their_form(figures, expected):
    page = _page(global_steps, {"global_steps": {"near": figures}})
    assert expected in "\n".join(page.blocks)


def test_counts_become_a_chart_with_the_tail_summed_up():
    sizes = {str(size): 2 for size in range(2, 102)}
    page = _page(global_steps, {"global_steps": {"near": {"cluster_sizes": sizes}}})
    (svg,) = page.plots.values()
    assert ">31 … 101<" in svg
    assert ">142<" in svg


def test_list_of_counts_is_numbered_from_one():
    page = _page(global_steps, {"global_steps": {"near": {"band_candidates": [7, 9]}}})
    (svg,) = page.plots.values()
    assert ">1<" in svg
    assert ">9<" in svg


def test_labels_that_no_document_has_are_left_out():
    found = {"output": {"bucket": _counted("head")}, "removed": {"bucket": _counted(None)}}
    page = _page(distributions, {"distributions": found})
    assert page.blocks[-1].splitlines()[0] == "| bucket | written |"


def test_many_labels_are_cut_after_the_most_frequent():
    names = [f"v{i:02d}" for i in range(40)]
    found = {"output": {"domain": _counted(*names, "v39")}}
    page = _page(distributions, {"distributions": found})
    assert page.blocks[-2].splitlines()[2] == "| v39 | 2 |"
    assert page.blocks[-1] == "10 more values of `domain` are in card.json."
