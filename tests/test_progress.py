import re
import sys

from jaxtrain import progress


def test_lines_come_at_intervals_with_rate_and_time_left(monkeypatch, capsys):
    clock = iter([0.0, 1.0, 20.0, 21.0, 40.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.show_bytes("encoding", 100_000_000) as show:
        for done_bytes in (1_000_000, 20_000_000, 21_000_000, 40_000_000):
            show(done_bytes)
    assert capsys.readouterr().err.splitlines() == [
        "encoding: 20 of 100 MB, 1.0 MB/s, 80 s left",
        "encoding: 40 of 100 MB, 1.0 MB/s, 60 s left",
    ]


def test_documents_come_with_rates_since_the_first_call_and_time_left(monkeypatch, capsys):
    clock = iter([0.0, 0.0, 0.0, 20.0, 20.0, 20.0])  # start, first call, …
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.show_documents("cleaning") as show:
        show(progress.Done(1_000, 5_000_000, 0.1))  # of an earlier start
        show(progress.Done(3_000, 25_000_000, 0.5))
    assert capsys.readouterr().err.splitlines() == [
        "cleaning: 3,000 documents, 25.0 MB, 100 documents/s, 1.0 MB/s, 25 s left"
    ]


def test_counts_come_with_time_left(monkeypatch, capsys):
    clock = iter([0.0, 5.0, 20.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.show_count("answering", 100, "prompts") as show:
        show(10)
        show(40)
    assert capsys.readouterr().err.splitlines() == ["answering: 40 of 100 prompts, 30 s left"]


def test_bar_on_a_terminal_is_on_stderr_and_shows_time_left_in_80_columns(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for name, value in (("COLUMNS", "80"), ("TERM", "xterm"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    with progress.show_documents("cleaning (pass 1 of 3)") as show:
        show(progress.Done(0, 0, 0.0))
        show(progress.Done(12_345, 25_000_000, 0.5))
    out, err = capsys.readouterr()
    assert out == ""
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", err).replace("\r", "\n").splitlines()
    assert max(map(len, lines)) <= 80
    assert re.search(r"documents/s, [\d.,]+ MB/s, 0 s left", "\n".join(lines))
