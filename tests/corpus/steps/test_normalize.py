import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxtrain.corpus.steps import normalize
from tests.corpus.judging import assert_second_run_changes_nothing, judge

TEXTS = st.text() | st.lists(
    st.sampled_from(["e\u0301", "é", "\r", "\n", "\x00", "\ufeff", "Ã©", "â€™", "ö", "\x85", "Å",
                     " ", "가", "가", "\u0301", "\x1b", "ﬁ", "\u3000", "…"]),
    max_size=12,
).map("".join)  # fmt: skip


def changed(text, **options):
    """The text that comes out, and the edits."""
    found = judge(normalize, text, **options)
    assert found.dropped is None, found
    return found.document.text, dict(found.edits)


@pytest.mark.parametrize(
    ("text", "expected", "edits"),
    [
        ("a\r\nb\rc\n", "a\nb\nc\n", {"line breaks": 2}),
        ("a\r\r\nb", "a\n\nb", {"line breaks": 2}),
        ("page\fpage\vline", "page\npage\nline", {"line breaks": 2}),
        ("a\x00b\x1b[0mc\x7f\x9d", "ab[0mc", {"control characters": 4}),
        ("\ufeff\ufeffa\ufeffb", "a\ufeffb", {"byte order mark": 2}),
        ("cafe\u0301\nplain\nA\u030a", "café\nplain\nÅ", {"unicode form": 2}),
        ("e\x00\u0301", "é", {"control characters": 1, "unicode form": 1}),
        ("\u1112\u1161\u11ab", "한", {"unicode form": 1}),
    ],
)
def test_text_changes_by_rule_and_every_edit_is_counted(text, expected, edits):
    assert changed(text) == (expected, edits)


@pytest.mark.parametrize(
    "text",
    [
        "👩\u200d👩\u200d👧 and ❤\ufe0f",  # a family by joiners, a heart in colour
        "क्\u200dष and می\u200cخواهم",  # joiner and non-joiner in Hindi and Persian
        "葛\U000e0100",  # an ideographic variation
        "全角Ａ１　空白\u3000",
        "tab\tand  spaces \u00a0\u2009\u2028\u2029\x85 end",
        "right\u200fto\u202eleft soft\u00adhyphen",
        "\ue000 \ufffd \U0010ffff",
        "ﬁ ² ½ ™ … ㈱ ｶﾅ",
        "q\u0323\u0307",  # combining marks without a composed character
        "一\n\n\n二\n",
    ],
)
def test_default_leaves_everything_else_as_it_is(text):
    assert changed(text) == (text, {})


def test_only_the_documented_controls_go():
    every = "".join(map(chr, range(0xA0)))
    kept = {chr(c) for c in range(0x20, 0x7F)} | {"\t", "\n", "\x85"}
    assert set(changed(every)[0]) == kept
    assert len(changed(every)[0]) == 0xA0 - (0x20 - 2) - 1 - 0x1F + 3  # \r, \v and \f became \n


def test_unicode_form_is_that_of_the_standard():
    sample = [chr(c) for c in range(0xA0, 0x30000, 7) if not 0xD800 <= c < 0xE000]
    text = "a " + "".join(sample)
    for form in ("NFC", "NFKC"):
        assert changed(text, form=form)[0] == unicodedata.normalize(form, text)


def test_compatibility_characters_are_folded_when_asked():
    assert changed("Ａ１　ﬁ²…", form="NFKC") == ("A1 fi2...", {"unicode form": 1})


def test_mojibake_is_repaired_when_asked():
    text = "schÃ¶n\nplain\nIt doesnâ€™t\nnaïve"
    assert changed(text) == (text, {})
    assert changed(text, repair_mojibake=True) == (
        "schön\nplain\nIt doesn’t\nnaïve",
        {"mojibake": 2},
    )
    twice = "schön".encode().decode("latin-1").encode().decode("latin-1")
    assert changed(twice, repair_mojibake=True)[0] == "schön"


def test_missing_ftfy_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "ftfy", None)
    with pytest.raises(ValueError, match="needs the package ftfy, which is not installed; install"):
        judge(normalize, "text", repair_mojibake=True)


@pytest.mark.parametrize("text", ["", " \n\t", "\x00\x01", "\ufeff", "\u3000\u2028"])
def test_text_with_nothing_to_see_is_dropped(text):
    assert judge(normalize, text).dropped == "empty"


def test_dropped_document_is_as_it_came():
    assert judge(normalize, "\x00 ").document.text == "\x00 "


@given(TEXTS)
@example("\ufeff\x00\ufeff")
@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_second_run_changes_nothing(form, text):
    assert_second_run_changes_nothing(normalize, text, form=form)
    assert_second_run_changes_nothing(normalize, text, form=form, repair_mojibake=True)


def test_other_form_is_refused():
    with pytest.raises(ValueError, match=r"^form='NFD' must be NFC or NFKC"):
        normalize.Config(form="NFD")
