from dataclasses import replace

from jaxtrain.data.packing import Ledger
from jaxtrain.data.report import Report, SourceReport

LEDGER = Ledger(
    seq_len=10,
    num_rows=200,
    tokens_in=1900,
    tokens_out=1900,
    num_targets=1800,
    num_documents=100,
    num_cut_documents=7,
    max_segments=4,
)
HALF_FULL = Ledger(10, 100, 500, 500, 400, 80, 0, 9)


def make_report(**fields):
    sources = (SourceReport("web", 300, LEDGER), SourceReport("math", 50, HALF_FULL))
    known = {"num_steps": 35, "num_rows": 350, "available_steps": None, "filler_rows": 0}
    return Report(
        **(known | {"packing": "best_fit", "exhausted": "repeat", "sources": sources} | fields)
    )


def test_epochs_and_tokens_follow_from_the_draws():
    web, math = make_report().sources
    assert (web.epochs, web.tokens, web.rows_not_reached) == (1.5, 2850, 0)
    assert (math.epochs, math.tokens, math.rows_not_reached) == (0.5, 250, 50)


def test_text_states_shares_of_rows_and_of_tokens_and_the_ledger():
    head, web, math = str(make_report()).splitlines()
    assert head.startswith("35 steps, 350 rows in all, packing=best_fit; exhausted=repeat")
    assert "web: 85.7% of rows, 91.9% of tokens, 1.5 epochs (0 of 200 rows not reached)" in web
    assert "1,900 tokens in = 1,900 out + 0 dropped, 95.0% of positions filled" in web
    assert "7 of 100 documents cut, at most 4 segments in a row" in web
    assert "math: 14.3% of rows, 8.1% of tokens, 0.5 epochs (50 of 100 rows not reached)" in math


def test_text_names_the_policy_at_exhaustion():
    text = str(make_report(exhausted="stop", available_steps=35, filler_rows=3, num_rows=353))
    assert "exhausted=stop: each source is read once, 35 steps in all" in text
    assert "3 rows of the last batch are filler" in text


def test_text_says_which_store_was_too_large_to_be_verified():
    web, math = make_report().sources
    large = replace(web, unverified_bytes=3_200_000_000)
    _, first, second = str(make_report(sources=(large, math))).splitlines()
    assert first.endswith("; 3.2 GB not verified (python -m jaxtrain.tokenize verify)")
    assert "verif" not in second


def test_tokens_that_were_lost_would_show():
    lost = Ledger(10, 200, 1900, 1895, 1800, 100, 7, 4)
    text = str(make_report(sources=(SourceReport("web", 300, lost),)))
    assert "1,900 tokens in = 1,895 out + 5 dropped" in text


def test_text_counts_answers_and_their_groups_instead_of_cuts():
    ledger = Ledger(10, 200, 1900, 1900, 1800, 100, 0, 4)
    pairs = SourceReport("prefs", 300, ledger, answers="pairs", num_groups=50)
    text = str(make_report(sources=(pairs,)))
    assert "100 answers in 50 groups of kind 'pairs', none cut, at most 4 segments" in text
    assert text.endswith("1,800 trained")
    steps = replace(pairs, answers="steps", num_groups=100)
    assert str(make_report(sources=(steps,))).endswith("1,800 steps judged")
