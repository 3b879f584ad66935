"""From what a user names as a model to a local directory: a path, or a name on the hub."""

import importlib
import pathlib
import re

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
#: What a text model is made of; pickled weights are not fetched.
_PATTERNS = ("*.json", "*.safetensors", "*.model", "*.jinja", "README.md", "LICENSE*")


def find_model(model: str, revision: str | None = None, *, flag: str = "--model") -> pathlib.Path:
    """The directory of a model; one that is named `owner/name` is downloaded.

    Args:
      flag: the one that named it, for errors.

    Raises:
      ValueError: where there is no such directory, or the hub cannot be reached or has no such
        model.
    """
    path = pathlib.Path(model)
    if model and path.is_dir():
        if revision:
            raise ValueError(f"--revision={revision} is for models of the hub; {model} is local.")
        return path
    if (model and path.exists()) or not _HUB_NAME.fullmatch(model):
        raise ValueError(
            f"{flag}={model} is neither a directory nor the name of a model on the Hugging Face "
            "hub (owner/name)."
        )
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise ValueError(
            f"{flag}={model} is no directory, and downloading it needs huggingface_hub; install "
            "that, or download the model by other means and give its directory."
        ) from None
    try:
        return pathlib.Path(
            hub.snapshot_download(model, revision=revision, allow_patterns=list(_PATTERNS))
        )
    except Exception as error:  # of the network, the hub, or its client: too many kinds to name
        reason = " ".join(str(error).split())[:300].rstrip(". ") or repr(error)
        raise ValueError(
            f"{flag}={model} is no directory, and it could not be downloaded: {reason}. Without a "
            "network, give the directory of a model."
        ) from error
