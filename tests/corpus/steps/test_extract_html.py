import pytest

from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.inputs import read_documents
from jaxtrain.corpus.step import Workspace
from jaxtrain.corpus.steps import extract_html

pytest.importorskip("resiliparse")

_PAGE = """<!DOCTYPE html><html><head><title>T</title><style>p{color:red}</style></head><body>
<nav><ul><li><a href=/>Home</a></li><li><a href=/about>About us</a></li></ul></nav>
<main><h1>Growing beans</h1><p>Beans need <b>sun</b> &amp; water.<br>Every day, and more.</p>
<script>var hidden = "no text";</script>
<ul><li>Runner beans climb.</li><li>Broad beans stand.</li></ul>
<table><tr><th>Kind</th><th>Days</th></tr><tr><td>Runner</td><td>90</td></tr></table>
<pre><code>def sow(n):
    for i in range(n):

        print(i &lt; 3)
</code></pre>
<p>“2 &lt; 3” — naïve 日本語</p></main>
<footer>Copyright, privacy policy</footer></body></html>"""


def _step(tmp_path, **options):
    return extract_html.make(extract_html.Config(**options), Workspace(tmp_path))


def _page(html, mime="text/html"):
    return Document("d", html, "s", {"mime": mime, "url": "u"})


def test_main_content_is_kept_with_lists_tables_and_code(tmp_path):
    [outcome] = _step(tmp_path)([_page(_PAGE)])
    text = outcome.document.text
    assert text.startswith("Growing beans\n\nBeans need sun & water.\nEvery day, and more.")
    assert "• Runner beans climb." in text
    assert "Runner\t\t90" in text
    assert "def sow(n):\n    for i in range(n):\n\n        print(i < 3)" in text
    assert text.endswith("“2 < 3” — naïve 日本語")
    assert outcome.edits == {"extracted": 1}
    assert outcome.document.metadata == {"mime": "text/plain", "url": "u"}


@pytest.mark.parametrize("gone", ["Home", "Copyright", "hidden", "color:red"])
def test_menus_footers_and_scripts_are_left_out(tmp_path, gone):
    [outcome] = _step(tmp_path)([_page(_PAGE)])
    assert gone not in outcome.document.text


def test_all_that_is_seen_is_kept_when_asked_for(tmp_path):
    [outcome] = _step(tmp_path, main_content=False)([_page(_PAGE)])
    assert "Home" in outcome.document.text
    assert "Copyright" in outcome.document.text
    assert "hidden" not in outcome.document.text


@pytest.mark.parametrize("html", ["<p> </p>", "<script>x()</script>", "<nav>Home</nav>"])
def test_page_without_text_is_dropped_by_a_rule(tmp_path, html):
    [outcome] = _step(tmp_path)([_page(html)])
    assert outcome.dropped == "nothing left"
    assert outcome.document.text == html


def test_text_that_is_no_html_goes_on_as_it_is_and_so_does_what_was_extracted(tmp_path):
    step = _step(tmp_path)
    texts = [_page("if a<b and c>d: <p>", "text/plain"), Document("d", "1 < 2", "s", {})]
    plain, unnamed = (outcome.document for outcome in step(texts))
    assert (plain, unnamed) == (texts[0], texts[1]._replace(metadata={"mime": None}))
    [once] = step([_page("<p>a &lt;b&gt; c</p>")])
    [twice] = step([once.document])
    assert once.document.text == "a <b> c"
    assert (twice.document, twice.edits) == (once.document, {})


def test_page_nested_too_deeply_is_dropped_and_one_of_many_short_elements_is_not(tmp_path):
    deep = _page("<body>" + "<div>" * 100_000 + "x" + "</div>" * 100_000)
    wide = _page("<body><div>" + "<div><p>word</div><ul><li>one<li>two</ul>" * 3_000)
    outcomes = _step(tmp_path)([deep, wide])
    assert [outcome.dropped for outcome in outcomes] == ["nested too deeply", None]
    assert outcomes[0].because == "100,001 elements deep > 2,000"
    assert set(extract_html.ExtractHtml.rules) == {"extracted", "nothing left", "nested too deeply"}


def test_broken_html_gives_its_text(tmp_path):
    step = _step(tmp_path)
    outcomes = step(
        [_page(html) for html in ("<p>a<div><b>b</p>c", "no tags < here", "<p>a\0b</p>")]
    )
    assert [outcome.document.text for outcome in outcomes] == [
        "a\n\nb\n\nc",
        "no tags < here",
        "ab",
    ]


@pytest.mark.shared
def test_every_page_of_real_warc_files_has_text(shared_dir, tmp_path):
    pages = list(read_documents([f"{shared_dir}/data/web/*.warc.gz"]))
    outcomes = _step(tmp_path)(pages)
    assert len(outcomes) == 42
    assert all(outcome.dropped is None for outcome in outcomes)
    texts = [outcome.document.text for outcome in outcomes]
    assert not any("<div" in text or "</p>" in text for text in texts)
    wikipedia = texts[-1]
    assert "Escopete" in wikipedia
