import sys
from types import SimpleNamespace

import pytest

from jaxtrain.hub.download import find_model


def test_a_directory_is_taken_as_it_is(tmp_path):
    assert find_model(str(tmp_path)) == tmp_path
    with pytest.raises(ValueError, match="--revision=v1 is for models of the hub"):
        find_model(str(tmp_path), "v1")


@pytest.mark.parametrize("name", ["nowhere", "a/b/c", "./x/y", ""])
def test_what_is_no_directory_and_no_name_is_refused(name):
    with pytest.raises(
        ValueError, match=r"^--model=.* neither a directory nor the name of a model"
    ):
        find_model(name)
    with pytest.raises(
        ValueError, match=r"^--draft=.* neither a directory nor the name of a model"
    ):
        find_model(name, flag="--draft")


def test_a_name_is_downloaded_without_pickles(monkeypatch, tmp_path):
    asked = {}

    def snapshot_download(name, **more):
        asked.update(more, name=name)
        return str(tmp_path)

    stand_in = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", stand_in)
    assert find_model("owner/model-1.5", "main") == tmp_path
    assert (asked["name"], asked["revision"]) == ("owner/model-1.5", "main")
    assert not any("bin" in pattern or pattern == "*" for pattern in asked["allow_patterns"])


def test_no_network_is_one_clear_line(monkeypatch):
    def snapshot_download(*_, **__):
        raise ConnectionError("no route\nto host")

    stand_in = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", stand_in)
    with pytest.raises(
        ValueError, match=r"could not be downloaded: no route to host\. Without a n"
    ):
        find_model("owner/model")


def test_a_missing_client_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match="downloading it needs huggingface_hub; install"):
        find_model("owner/model")
