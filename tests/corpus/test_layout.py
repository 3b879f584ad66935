import pathlib

from jaxtrain.corpus.layout import ChunkName, Layout


def test_chunks_that_are_done_are_those_with_a_report_in_the_order_of_documents(tmp_path):
    place = Layout(tmp_path).segment(2)
    place.folder.mkdir(parents=True)
    names = [ChunkName(0, 0), ChunkName(0, 1), ChunkName(2, 10), ChunkName(123_456, 0)]
    for name in reversed(names):
        place.report(name).touch()
    place.documents(ChunkName(9, 9)).touch()
    place.decided.touch()
    (place.folder / ".00000-00003.json.x.part").touch()
    assert place.done() == names


def test_paths_of_a_chunk_differ():
    layout = Layout(pathlib.Path("w"))
    place, name = layout.segment(0), ChunkName(3, 1)
    paths = [
        *(place.documents(name), place.output(name, "train"), place.output(name, "heldout")),
        *(place.observed(name), place.fates(name), place.rejected(name), place.report(name)),
        *(place.scratch, place.decided, layout.recipe, layout.models, layout.card),
        *(layout.shard("train", 0), layout.fates(0), layout.rejected),
    ]
    assert len(set(paths)) == len(paths)
    assert str(place.report(name)) == "w/work/0/00003-00001.json"


def test_work_has_results_once_a_chunk_is_done_or_something_learnt(tmp_path):
    layout = Layout(tmp_path)
    layout.models.mkdir(parents=True)
    layout.segment(0).folder.mkdir()
    layout.recipe.touch()
    (layout.models / "00-score_perplexity").mkdir()
    assert not layout.has_results
    for result in (
        layout.models / "00-score_perplexity.done",
        layout.segment(0).report(ChunkName(3, 0)),
    ):
        result.touch()
        assert layout.has_results
        result.unlink()
