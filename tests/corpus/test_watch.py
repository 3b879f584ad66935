from contextlib import contextmanager

from jaxtrain import files
from jaxtrain.corpus import watch
from jaxtrain.corpus.layout import ChunkName, Layout


def test_share_of_compressed_input_follows_from_the_ratio_of_units_that_are_done():
    frac = watch.of_inputs([100, 100, 200])
    assert frac({}, set()) == 0
    assert frac({0: 400}, {0}) == 0.25
    assert frac({0: 400, 1: 200}, {0}) == (100 + 50) / 400
    assert frac({0: 400, 1: 4000}, {0}) == 0.5  # no unit is more than all of it
    assert frac({0: 400, 1: 400, 2: 800}, {0, 1, 2}) == 1


def test_share_of_known_text():
    assert watch.of_text(200)({0: 50, 1: 50}, set()) == 0.5
    assert watch.of_text(0)({}, set()) == 0


def test_reports_that_appear_are_counted_once_and_to_the_end(tmp_path, monkeypatch):
    place = Layout(tmp_path).segment(0)
    place.folder.mkdir(parents=True)
    shown = []

    @contextmanager
    def show(what):
        yield shown.append

    monkeypatch.setattr(watch, "show_documents", show)
    commit = {"documents": 3, "bytes": 50, "ends_unit": False}
    files.write_json(place.report(ChunkName(0, 0)), commit)
    with watch.watch("reading", place, watch.of_inputs([100, 100])):
        files.write_json(place.report(ChunkName(0, 1)), commit | {"ends_unit": True})
        files.write_json(place.report(ChunkName(1, 0)), commit)
    assert (shown[-1].documents, shown[-1].bytes) == (9, 150)
    assert shown[-1].frac == (100 + 50) / 200
