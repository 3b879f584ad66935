import json
import re

from jaxtrain.corpus.card import make_card, with_token_counts
from jaxtrain.corpus.card_markdown import write_markdown
from jaxtrain.corpus.documents import Document
from jaxtrain.corpus.ledger import Declared, Report
from jaxtrain.corpus.step import Outcome


def _card(dropped: int = 6):
    report = Report({"quality": Declared(("dull", "never"), ("score",))})
    batch = [
        Document(f"d{i}", f"text <{i}> `x`", "web", {"language": "zh", "origin": f"w:{i}"})
        for i in range(10)
    ]
    report.take_in(batch)
    report.pass_by("a.jsonl", "not JSON", 7, 30)
    outcomes = [Outcome(each, "dull", "score 0.1 < 0.2") for each in batch[:dropped]]
    outcomes += [Outcome(each) for each in batch[dropped:]]
    report.record("quality", batch, outcomes)
    report.write("train", batch[dropped:])
    figures = {"quality": {"cluster_sizes": {"2": 1}}}
    made_from = {
        "config": {"steps": ["quality"], "licences": ["web=CC0-1.0"]},
        "inputs": {"w.jsonl": {"sha256": "e" * 64, "source": "web"}},
    }
    card = make_card(made_from, report, figures, {}, {"zlib": 2.1})
    return with_token_counts(card, "c" * 64, {"train": {"web": 99}})


def _files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_page_tells_what_the_card_holds(tmp_path):
    write_markdown(_card(), tmp_path)
    page = (tmp_path / "card.md").read_text()
    for expected in (
        "| quality | 10 | 6 | 60.0 % |",
        f"| w.jsonl | web | CC0-1.0 | {'e' * 64} |",
        "| zh | 4 | 4 |",
        "| not JSON | 1 | 30 | a.jsonl:7 |",
        "zlib 2.100",
        "| train | web | 99 |",
        '"steps": ["quality"],',
    ):
        assert expected in page


def test_every_chart_that_the_page_shows_is_there_and_no_other(tmp_path):
    write_markdown(_card(), tmp_path)
    shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (tmp_path / "card.md").read_text())
    assert set(shown) == _files(tmp_path).keys() - {"card.md"}
    assert "card/steps.svg" in shown


def test_same_card_gives_the_same_bytes_in_any_directory(tmp_path):
    write_markdown(_card(), tmp_path / "one")
    write_markdown(json.loads(json.dumps(_card())), tmp_path / "two")
    assert _files(tmp_path / "one") == _files(tmp_path / "two")


def test_card_of_a_run_that_removed_nothing_is_shown(tmp_path):
    write_markdown(_card(dropped=0), tmp_path)
    assert "No rule removed or changed anything." in (tmp_path / "card.md").read_text()
