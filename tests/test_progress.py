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
