from jaxtrain.corpus.card_page import Page
from jaxtrain.corpus.card_rules import examples, flags, rules

EXAMPLE = {
    "sha256": "0",
    "id": "d1",
    "source": "web",
    "origin": "w:1",
    "because": "score 0.1 < 0.2",
    "text": "some `text`",
    "changed_to": "",
}
EDIT = EXAMPLE | {"because": "", "origin": "", "text": "a\u200b\nb", "changed_to": "a b"}


def _card(**changes):
    removed = {"rule": "dull", "removed": {"documents": 6, "bytes": 60}, "examples": [EXAMPLE]}
    edited = {"rule": "gaps", "edited": {"documents": 1, "occurrences": 3}, "examples": [EDIT]}
    few = {"rule": "rare", "removed": {"documents": 1, "bytes": 9}, "examples": []}
    never = {"rule": "never", "examples": []}
    step = {"step": "quality", "in": {"documents": 10}, "rules": [few, removed, edited, never]}
    return {"steps": [step], "flags": {"dead": [], "greedy": []}} | changes


def _text(section, card) -> str:
    page = Page()
    section(page, card)
    return "\n".join(page.blocks)


def test_rules_are_listed_by_what_they_removed():
    text = _text(rules, _card())
    assert "| quality: dull | 6 | 60.0 % | 60 |" in text
    assert text.index("quality: dull") < text.index("quality: rare")
    assert "| quality: gaps | 1 | 10.0 % | 3 |" in text
    assert "never" not in text


def test_rules_that_did_nothing_are_said_to():
    assert "No rule removed or changed anything." in _text(rules, _card(steps=[]))


def test_flags_name_rules_with_their_share():
    flagged = {
        "greedy": [{"step": "quality", "rule": "dull", "removed_frac": 0.6}],
        "dead": [{"step": "quality", "rule": "never"}, {"step": "quality", "rule": "nor"}],
    }
    text = _text(flags, _card(flags=flagged))
    assert "over 50 % of what their step took: quality: dull (60.0 %)." in text
    assert "which did nothing: quality: never, nor." in text
    assert _text(flags, _card()).count("none.") == 2


def test_examples_show_reason_and_text_or_change():
    text = _text(examples, _card())
    assert "- d1 (w:1) — score 0.1 \\< 0.2: `` some `text` ``" in text
    assert "- d1: `a\\u{200b}⏎b` → `a b`" in text


def test_example_of_a_private_step_shows_what_it_may():
    hidden = EXAMPLE | {"text": "", "because": "9 finds"}
    rule = {"rule": "full", "removed": {"documents": 1, "bytes": 1}, "examples": [hidden]}
    step = {"step": "mask", "in": {"documents": 1}, "rules": [rule]}
    assert "- d1 (w:1) — 9 finds" in _text(examples, _card(steps=[step])).splitlines()
