import os
import subprocess
import sys

import pytest

from jaxtrain import startup


@pytest.fixture
def glibc(monkeypatch, tmp_path):
    """A CPU machine on which huge pages would help."""
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    pages = tmp_path / "enabled"
    pages.write_text("always [madvise] never")
    monkeypatch.setattr(startup, "_THP", pages)
    return pages


def test_allocator_asks_for_a_new_start_where_huge_pages_help(glibc):
    assert startup.allocator()[0] == "re-execute"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m, _: m.setenv("JAX_PLATFORMS", "cuda"), "the work runs on a GPU"),
        (lambda m, _: m.setattr("platform.libc_ver", lambda: ("glibc", "2.31")), "glibc 2.31"),
        (lambda m, _: m.setattr("platform.libc_ver", lambda: ("", "")), "another libc"),
        (lambda _, pages: pages.write_text("always madvise [never]"), "transparent huge pages off"),
    ],
)
def test_allocator_stays_as_it_is_elsewhere_and_says_why(glibc, monkeypatch, change, reason):
    change(monkeypatch, glibc)
    state, said = startup.allocator()
    assert state == "off"
    assert reason in said


def test_allocator_that_is_told_no_is_off(monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    assert startup.allocator() == ("off", "GLIBC_TUNABLES=glibc.malloc.hugetlb=0")


def test_enter_starts_the_process_again_once_with_its_arguments(root_dir):
    if startup.allocator()[0] == "off":
        pytest.skip(f"huge pages are not to be had here: {startup.allocator()[1]}")
    code = (
        "import os, sys; print('start', flush=True)\n"
        "from jaxtrain import startup; startup.enter()\n"
        "print(sys.argv[1:], os.environ['GLIBC_TUNABLES'])"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "GLIBC_TUNABLES": "glibc.malloc.check=0"}
    out = subprocess.run(
        [sys.executable, "-c", code, "--a=1", "b c"],
        env=environment, cwd=root_dir, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert out.splitlines() == [
        "start",
        "start",
        "['--a=1', 'b c'] glibc.malloc.check=0:glibc.malloc.hugetlb=1",
    ]


def run_code(code: str, root_dir) -> subprocess.CompletedProcess[str]:
    """What a process that has nothing to start again for says and how it ends."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment, cwd=root_dir, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_ctrl_c_between_enter_and_run_ends_the_process_in_one_line(root_dir):
    done = run_code(
        "import os, signal\n"
        "from jaxtrain import startup; startup.enter()\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "except BaseException:\n    print('lost in a library')\n"
        "print('went on')",
        root_dir,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_a_process_that_ignores_ctrl_c_goes_on_ignoring_it(root_dir):
    done = run_code(
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from jaxtrain import startup; startup.enter()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print('went on')",
        root_dir,
    )
    assert (done.returncode, done.stdout) == (0, "went on\n")


def test_a_driver_without_the_plugin_of_jax_is_no_gpu(monkeypatch, tmp_path):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    driver = tmp_path / "version"
    driver.write_text("")
    monkeypatch.setattr(startup, "_GPU_DRIVER", (driver,))
    monkeypatch.setattr(startup, "_GPU_PLUGINS", ("no_such_plugin",))
    assert not startup.uses_gpu()
    monkeypatch.setattr(startup, "_GPU_PLUGINS", ("no_such_plugin", "json"))
    assert startup.uses_gpu()


def test_started_is_the_time_of_the_first_start(monkeypatch):
    monkeypatch.setenv("JAXTRAIN_STARTED", "123.5")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    startup.enter()
    assert startup.started == 123.5
    assert "JAXTRAIN_STARTED" not in os.environ


@pytest.mark.parametrize(
    ("platforms", "found"), [("cpu", False), ("cuda", True), ("cuda,cpu", True)]
)
def test_uses_gpu_follows_the_platforms_asked_for(monkeypatch, platforms, found):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert startup.uses_gpu() is found


@pytest.mark.parametrize(("has_driver", "asked"), [(True, None), (False, "cpu")])
def test_a_plugin_without_a_driver_is_not_tried(monkeypatch, tmp_path, has_driver, asked):
    monkeypatch.setenv("JAX_PLATFORMS", "")  # put back at the end, whatever is set below
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    driver = tmp_path / "version"
    if has_driver:
        driver.write_text("")
    monkeypatch.setattr(startup, "_GPU_DRIVER", (driver,))
    monkeypatch.setattr(startup, "_GPU_PLUGINS", ("json",))
    startup.enter()
    assert os.environ.get("JAX_PLATFORMS") == asked
