import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.corpus.steps import c4
from tests.corpus.judging import assert_second_run_changes_nothing, judge

SENTENCES = "This is a sentence. " * 4 + "And this is the fifth."
OFF = {
    "strip_citation_marks": False,
    "drop_unfinished_lines": False,
    "min_words_per_line": None,
    "max_word_chars": None,
    "line_phrases": (),
    "page_phrases": (),
    "min_sentences": None,
}


def edits_of(line, **options):
    """What happens to one line after a page of five sentences."""
    found = judge(c4, f"{SENTENCES}\n{line}", **options)
    assert found.dropped is None
    if not found.edits:
        assert found.document.text == f"{SENTENCES}\n{line}"
    return found.edits


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("It ends so.", None), ("Does it end?", None), ("It ends so!", None), ('It is "so"', None),
        ("It goes on so", "unfinished line"), ("It goes on, and", "unfinished line"),
        ("It goes on so...", "unfinished line"), ("It goes on so…", "unfinished line"),
        ("他说到这里就停了。", None), ("他停了……", None), ("他停了…", "unfinished line"),
        ("他说，", "unfinished line"), ("यह अंत है।", None), ("ภาษาไทย", None),
        ("Two words.", "line of too few words"), ("Now three words.", None),
        ("两字。", "line of too few words"), ("三个字。", None),
        (f"It has {'x' * 1001} in.", "line with a very long word"),
        (f"It has {'x' * 1000} in.", None),
        ("长" * 1500 + "。", None),
        ("Please enable JavaScript now.", "line with “javascript”"),
        ("Read our Privacy Policy here.", "line with “privacy policy”"),
        ("Our Terms of Use apply.", "line with “terms of use”"),
        ("This site uses cookies now.", "line with “uses cookies”"),
        ("Our use of cookies is.", "line with “use of cookies”"),
        ("We may use cookies here.", "line with “use cookies”"),
        ("The cookie policy is here.", "line with “cookie policy”"),
        ("I bake cookies, as policy.", None),
    ],
)  # fmt: skip
def test_line_is_removed_by_its_rule(line, rule):
    assert edits_of(line) == ({rule: 1} if rule else {})


def test_words_per_line_can_be_those_of_dclm():
    assert edits_of("It has four words.", min_words_per_line=5) == {"line of too few words": 1}
    assert edits_of("It has now five words.", min_words_per_line=5) == {}


def test_citation_marks_are_cut_out_and_counted():
    found = judge(c4, f"{SENTENCES}\nIt is so[1] here[citation needed] and[edit] a[i] there.[23]")
    assert found.edits == {"citation mark": 4}
    assert found.document.text == f"{SENTENCES}\nIt is so here and a[i] there."
    for nested in ("[[1]2]", "[[edit]3]", "[1[citation needed]2]", "[" * 50_000 + "1]" * 50_000):
        found = judge(c4, f"{SENTENCES} {nested}")
        assert found.edits == {"citation mark": nested.count("]")}
        assert found.document.text == f"{SENTENCES} "


@pytest.mark.parametrize(
    ("text", "rule"),
    [("A page of Lorem  ipsum.", None), ("A page of Lorem Ipsum.", "page with “lorem ipsum”"),
     ("var a = {};", "page with “{”"), ("A page (so)", None)],
)  # fmt: skip
def test_page_is_dropped_by_what_it_holds_anywhere(text, rule):
    assert judge(c4, f"{SENTENCES}\n{text}").dropped == rule


def test_bad_words_come_from_a_file(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("nasty\n")
    found = judge(c4, f"{SENTENCES}\nIt is Nasty here.", bad_words=str(path))
    assert (found.dropped, found.because) == ("bad word", "“nasty”")
    assert judge(c4, f"{SENTENCES}\nIt is nastier here.", bad_words=str(path)).dropped is None


@pytest.mark.parametrize(
    "sentence", ["It is a line. ", "他说了一句话。", "Is this it? ", "यह वाक्य है। "]
)
def test_number_of_sentences_is_judged_at_its_threshold(sentence):
    assert judge(c4, sentence * 5).dropped is None
    found = judge(c4, sentence * 4)
    assert (found.dropped, found.because) == ("too few sentences", "sentences 4 < 5")
    assert judge(c4, sentence * 4, min_sentences=3).dropped is None


def test_only_lines_that_stay_count_as_sentences():
    text = "\n".join(["It is a line."] * 4 + ["and a menu"] * 3)
    assert judge(c4, text).dropped == "too few sentences"


def test_document_without_any_line_left_is_dropped():
    assert judge(c4, "Menu\nAbout us").dropped == "no line left"
    assert judge(c4, " \n", **OFF).dropped == "no line left"


def test_mc4_asks_for_long_lines_instead():
    rules = OFF | {"min_long_lines": 3}
    assert judge(c4, "\n".join(["文" * 200] * 3 + ["menu"]), **rules).dropped is None
    found = judge(c4, "\n".join(["x" * 200] * 2 + ["x" * 199]), **rules)
    assert (found.dropped, found.because) == (
        "too few long lines",
        "lines of 200 characters or more 2 < 3",
    )


def test_rules_can_be_turned_off():
    assert judge(c4, "{ lorem ipsum javascript[1]", **OFF).edits == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_sentences": 0}, "min_sentences=0 must be above 0 and finite; None turns"),
        ({"min_words_per_line": 0}, "min_words_per_line=0 must be above 0"),
        ({"line_phrases": ("Terms",)}, "line_phrases: 'Terms' is compared with text in lower case"),
        ({"page_phrases": ("",)}, "page_phrases: '' is compared"),
        ({"bad_words": "nowhere.txt"}, "bad_words=nowhere.txt is no file; name one, or None"),
    ],
)
def test_option_that_can_do_nothing_is_refused(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        c4.Config(**options)


PIECES = st.sampled_from(
    ["It is a line. ", "他说。", "menu", "java", "script", "lorem", " ipsum", "[1", "]", "[",
     "\n", "\n\n", "terms of", " use", "ไทย", "…", ".", " "]
)  # fmt: skip


@given(st.lists(PIECES, max_size=14).map("".join))
def test_second_run_changes_nothing(text):
    assert_second_run_changes_nothing(c4, text, min_sentences=1)
