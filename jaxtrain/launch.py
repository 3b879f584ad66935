"""How every `python -m jaxtrain.<stage>` starts: flags, config, readable errors, exit codes."""

import argparse
import inspect
import os
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jaxtrain import config as config_lib

T = TypeVar("T")
_OVERRIDE = re.compile(r"--config\.([^=]+)(?:=(.*))?$", re.DOTALL)


def parser(doc: str | None) -> argparse.ArgumentParser:
    """An argument parser that shows a launcher's module docstring as its help."""
    module = inspect.getmodule(inspect.stack()[1].frame)
    spec = getattr(module, "__spec__", None)
    return argparse.ArgumentParser(
        prog=f"python -m {spec.name}" if spec else None,
        description=doc,
        epilog="Every --config key is explained by `python -m jaxtrain.config`.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def parse(
    cls: type[T], arguments: argparse.ArgumentParser, argv: Sequence[str] | None = None
) -> tuple[T, argparse.Namespace]:
    """Reads --config=FILE, --config.path.key=value and the launcher's own flags.

    Raises:
      ValueError: for anything wrong in the config, with its dotted path.
    """
    arguments.add_argument(
        "--config",
        required=True,
        metavar="FILE.py",
        help="config file, e.g. configs/pretrain/tiny.py",
    )
    arguments.add_argument(
        "--config.KEY", metavar="VALUE", help="overrides one value, e.g. --config.loop.num_steps=50"
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

    An error raised by jaxtrain's own code is meant for the user; one raised inside a library is a
    fault of ours or theirs and is shown whole. JAXTRAIN_TRACEBACK=1 always shows the traceback.
    """
    try:
        main()
    except (ValueError, OSError) as error:
        if os.environ.get("JAXTRAIN_TRACEBACK") or not _raised_here(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _raised_here(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    package = str(pathlib.Path(__file__).parent)
    return bool(frames) and frames[-1].filename.startswith((package, os.path.join("configs", "")))
