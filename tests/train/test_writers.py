import io
import json
import math
import pathlib
import struct
import subprocess
import sys

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from jaxtrain.train import writers


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_json_lines_are_one_object_a_line_with_plain_numbers(tmp_path):
    writer = writers.JsonLinesWriter(tmp_path / "m.jsonl", continue_at=0)
    writer.write_scalars(3, {"loss": np.float32(0.5), "tokens": 10**12, "count": np.int32(4)})
    assert lines(tmp_path / "m.jsonl") == [
        {"step": 3, "loss": 0.5, "tokens": 10**12, "count": 4}
    ]  # before close: a kill loses nothing


def test_json_lines_name_a_number_that_is_not_finite(tmp_path):
    writer = writers.JsonLinesWriter(tmp_path / "m.jsonl", continue_at=0)
    writer.write_scalars(1, {"loss": np.float32("nan"), "norm": math.inf})
    assert lines(tmp_path / "m.jsonl") == [{"step": 1, "loss": "nan", "norm": "inf"}]


def test_json_lines_continue_after_the_resumed_step_and_drop_a_cut_line(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step": 4, "lo')
    writer = writers.JsonLinesWriter(path, continue_at=2)
    writer.write_scalars(3, {"loss": 1.0})
    assert lines(path) == [{"step": 1}, {"step": 2}, {"step": 3, "loss": 1.0}]


def test_json_lines_that_are_dropped_are_kept_beside(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    writers.JsonLinesWriter(path, continue_at=0).close()
    assert path.read_text() == ""
    assert lines(tmp_path / "metrics.dropped.jsonl") == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("line", ["garbage", "[1]", '{"loss": 1}'])
def test_a_line_that_is_no_metrics_is_named_and_nothing_is_lost(tmp_path, line):
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(ValueError, match=r"m\.jsonl:2 is no line of metrics"):
        writers.JsonLinesWriter(path, continue_at=5)
    assert path.read_text() == f'{{"step": 1}}\n{line}\n'


@pytest.mark.parametrize(
    ("secs", "shown"),
    [(59.6, "01:00"), (3599, "59:59"), (3600, "1:00:00"), (30 * 3600, "30:00:00")],
)
def test_time_left_is_not_cut_at_a_day(secs, shown):
    assert writers._clock(secs) == shown


def test_a_reader_that_has_gone_does_not_end_training(root_dir):
    code = (
        "import sys; from jaxtrain.train.writers import Terminal\n"
        "terminal = Terminal(9, 0)\n"
        "for _ in range(20000): terminal.say('line')\n"
        "print('trained on', file=sys.stderr)"
    )
    result = subprocess.run(
        f"{sys.executable} -c \"{code}\" | head -n 1",
        shell=True, cwd=root_dir, capture_output=True, text=True,
    )  # fmt: skip
    assert result.stdout == "line\n"
    assert result.stderr.splitlines()[-1] == "trained on"


def test_a_full_disk_is_an_error_of_the_line_that_did_not_fit(tmp_path):
    full = pathlib.Path("/dev/full")
    lines_writer = writers.JsonLinesWriter(tmp_path / "m.jsonl", continue_at=0)
    lines_writer._file = full.open("a", buffering=1)
    events_writer = writers.TensorBoardWriter(tmp_path, continue_at=0)
    events_writer._file = full.open("ab", buffering=0)
    for writer in (lines_writer, events_writer):
        with pytest.raises(OSError, match=r"metrics could not be written to .*No space left"):
            writer.write_scalars(1, {"loss": 1.0})


def test_tensorboard_hides_what_came_after_the_resumed_step(tmp_path):
    writers.TensorBoardWriter(tmp_path, continue_at=40).close()
    records = io.BytesIO(next(tmp_path.glob("events*")).read_bytes())
    starts = []
    while header := records.read(12):
        event = Event()
        event.ParseFromString(records.read(struct.unpack("<Q", header[:8])[0]))
        records.read(4)
        starts += [(event.step, event.session_log.status)] if event.HasField("session_log") else []
    assert starts == [(41, SessionLog.START)]


def events(directory):
    """Reads the records of TensorBoard's event files: length, crc, bytes, crc."""
    found = []
    for file in sorted(directory.glob("events*")):
        stream = io.BytesIO(file.read_bytes())
        while header := stream.read(12):
            event = Event()
            event.ParseFromString(stream.read(struct.unpack("<Q", header[:8])[0]))
            stream.read(4)
            found += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
    return found


def test_tensorboard_files_hold_the_scalars(tmp_path):
    writer = writers.TensorBoardWriter(tmp_path, continue_at=0)
    writer.write_scalars(7, {"eval/loss": np.float32(2.5), "name": "text is left out"})
    writer.close()
    assert events(tmp_path) == [(7, "eval/loss", pytest.approx(2.5))]


def test_terminal_prints_one_line_per_logged_step_when_piped(capsys):
    terminal = writers.Terminal(num_steps=100, start=0)
    terminal.step(10, {"loss": 1.5, "lr": 1e-3, "tokens_per_sec": 12345.0, "step_secs": 2.0})
    terminal.say("saved checkpoint of step 10")
    terminal.close()
    assert capsys.readouterr().out.splitlines() == [
        "step 10/100  loss 1.5000  lr 1.00e-03  12,345 tokens/s  03:00 left",
        "saved checkpoint of step 10",
    ]
