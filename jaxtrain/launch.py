"""How every `python -m jaxtrain.<stage>` starts: flags, config, readable errors, exit codes."""

import argparse
import inspect
import os
import pathlib
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from jaxtrain import config as config_lib
from jaxtrain import startup

T = TypeVar("T")
_OVERRIDE = re.compile(r"--config\.([^=]+)(?:=(.*))?$", re.DOTALL)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the flags in one line; of many flags, usage would bury it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def training_parser(doc: str | None) -> argparse.ArgumentParser:
    """The parser of a training stage, which has a workdir."""
    arguments = parser(doc, depth=2)
    arguments.add_argument(
        "--workdir", required=True, metavar="DIR", type=directory, help="the run's directory"
    )
    return arguments


def parser(doc: str | None, depth: int = 1) -> argparse.ArgumentParser:
    """An argument parser that shows a launcher's module docstring as its help.

    Args:
      depth: how many calls up the launcher is, whose name the help has.
    """
    module = inspect.getmodule(inspect.stack()[depth].frame)
    spec = getattr(module, "__spec__", None)
    return _Parser(
        prog=f"python -m {spec.name}" if spec else None,
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def directory(text: str) -> pathlib.Path:
    """The type of a flag that names a directory: an unset shell variable is no directory."""
    if not text:
        raise argparse.ArgumentTypeError("must name a directory; it is empty")
    return pathlib.Path(text)


def parse(
    cls: type[T], arguments: argparse.ArgumentParser, argv: Sequence[str] | None = None
) -> tuple[T, argparse.Namespace]:
    """Reads --config=FILE, --config.path.key=value and the launcher's own flags.

    Raises:
      ValueError: for anything wrong in the config, with its dotted path.
    """
    arguments.epilog = "\n".join(
        ["knobs, each as --config.KEY=VALUE:"]
        + [f"  {knob.path}: {knob.doc} [{knob.default!r}]" for knob in config_lib.knobs(cls)]
    )
    arguments.add_argument(
        "--config",
        required=True,
        metavar="FILE.py",
        help="a Python file with get_config(), such as those in configs/",
    )
    arguments.add_argument(
        "--config.KEY", metavar="VALUE", help="overrides one value of it; the keys are listed below"
    )
    options, rest = arguments.parse_known_args(argv)
    overrides = []
    while rest:
        token = rest.pop(0)
        match = _OVERRIDE.match(token)
        if not match:
            arguments.error(f"unrecognized argument: {token}")
        path, text = match.groups()
        if text is None:
            if not rest:
                arguments.error(f"{token} needs a value")
            text = rest.pop(0)
        overrides.append((path, text))
    return config_lib.resolve(cls, config_lib.load(cls, options.config, overrides)), options


def run(main: Callable[[], Any]) -> None:
    """Runs a launcher's main: a user's error is one line and exit code 2, a fault a traceback.

    An error raised by jaxtrain's own code is meant for the user, and so is a file that cannot be
    opened; one raised inside a library is a fault of ours or theirs and is shown whole.
    JAXTRAIN_TRACEBACK=1 always shows the traceback.
    """
    if signal.getsignal(signal.SIGINT) is startup.leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        _exit(128 + signal.SIGINT)
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _exit(1)
    except Exception as error:
        if _is_for_the_user(error) and not os.environ.get("JAXTRAIN_TRACEBACK"):
            print(f"error: {error}", file=sys.stderr)
            _exit(2)
        traceback.print_exception(error)
        _exit(1)


def _exit(code: int) -> None:
    if _is_one_of_several():
        # A normal exit would wait minutes for processes that wait for this one.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _is_one_of_several() -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized() and jax.process_count() > 1


def _is_for_the_user(error: BaseException) -> bool:
    """Whether an error says what a user can mend: a `raise` of this package, or a file's trouble.

    The statement is looked at, not the frame alone: jax cuts its own frames out of a traceback, so
    that an error of its making can seem to end in ours.
    """
    if isinstance(error, OSError) and error.filename is not None:
        return True
    if not isinstance(error, (ValueError, OSError, RuntimeError)):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return False
    inside = frames[-1].filename.startswith(str(pathlib.Path(__file__).parent))
    return inside and (frames[-1].line or "").startswith("raise")
