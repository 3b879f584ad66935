"""What Hugging Face `datasets` saved to disk: a folder of Arrow streams with a state.json."""

import json
from typing import Any

from jaxtrain.corpus.inputs import storage
from jaxtrain.corpus.inputs.reading import Items, Malformed, Part, ReadingConfig
from jaxtrain.corpus.inputs.rows import documents

_STATE, _SPLITS = "state.json", "dataset_dict.json"


def data_files(directory: str) -> list[str]:
    """The data files of a saved data set in order; none where the folder holds no data set.

    Raises:
      ValueError: where it holds several splits, or rows in another order than the files'.
    """
    if storage.exists(f"{directory}/{_SPLITS}"):
        splits = _json(f"{directory}/{_SPLITS}")["splits"]
        raise ValueError(
            f"inputs: {directory} holds the splits {', '.join(splits)}; name one: "
            f"{directory}/{splits[0]}"
        )
    if not storage.exists(f"{directory}/{_STATE}"):
        return []
    state = _json(f"{directory}/{_STATE}")
    if state.get("_indices_data_files"):
        raise ValueError(
            f"inputs: {directory} holds rows picked by an index; save it anew after "
            "`flatten_indices()`"
        )
    return [f"{directory}/{file['filename']}" for file in state["_data_files"]]


def read(part: Part, reading: ReadingConfig) -> Items:
    """The documents of one Arrow stream; offsets are rows."""
    import pyarrow as pa

    row = 0
    with storage.open_binary(part.file) as file:
        try:
            with pa.ipc.open_stream(file) as stream:
                for batch in stream:
                    yield from documents(batch, row, part, reading)
                    row += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            yield Malformed(part.name, row, "damaged file", 0, " ".join(str(error).split()))


def _json(file: str) -> Any:
    with storage.open_binary(file) as stream:
        try:
            return json.loads(stream.read())
        except ValueError as error:
            raise ValueError(f"{file} is not JSON ({error}); restore the data set") from error
