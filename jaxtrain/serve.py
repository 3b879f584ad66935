"""One model behind a small HTTP server that speaks the OpenAI API: for evaluation and rollouts.

    python -m jaxtrain.serve --workdir=DIR                  on http://127.0.0.1:8000/v1
    python -m jaxtrain.serve --model=HF_DIR --port=9000 --max_len=2048 --num_slots=32
    python -m jaxtrain.serve --workdir=DIR --draft=mtp      faster where a draft is often right

Completions and chat completions, whole or streamed, with log-probabilities. Requests run together
in the slots of one engine. Only this machine reaches it unless --host says otherwise, and then it
wants an API key: the environment variable JAXTRAIN_API_KEY. For serving the public there are
servers made for that (vLLM, SGLang): export the model.
"""

from jaxtrain import startup

if __name__ == "__main__":
    startup.enter()  # before jax is imported

import argparse
import importlib.util
import ipaddress
import os
import socket
import sys
from typing import Any

from jaxtrain import launch
from jaxtrain.serving import arguments

_API_KEY = "JAXTRAIN_API_KEY"
_GRACE_SECS = 10  # for answers that are under way when the server is told to stop


def main() -> None:
    """Runs the command line."""
    options = _arguments().parse_args()
    missing = [name for name in ("starlette", "uvicorn") if not importlib.util.find_spec(name)]
    if missing:
        raise ValueError(
            f"serving needs {' and '.join(missing)}: scripts/environment.sh serve, or pip install "
            "'jaxtrain[serve]'"
        )
    api_key = os.environ.get(_API_KEY) or None
    if not _is_loopback(options.host) and api_key is None:
        raise ValueError(
            f"--host={options.host} can be reached from other machines; set {_API_KEY}, or leave "
            "--host at 127.0.0.1"
        )
    import uvicorn

    listener = bind(options.host, options.port)  # before a model is loaded in vain
    model = arguments.load(options)
    draft = arguments.load_draft(options, model)
    max_len = options.max_len or model.default_max_len
    app = make(options, model, draft, max_len, api_key)
    host = f"[{options.host}]" if ":" in options.host else options.host
    print(
        f"serving {options.name} on http://{host}:{options.port}/v1, {options.num_slots} "
        f"slots, API key {'wanted' if api_key else 'not wanted'}",
        file=sys.stderr,
        flush=True,
    )
    config = uvicorn.Config(
        app, log_level="warning", timeout_graceful_shutdown=_GRACE_SECS, access_log=False
    )
    uvicorn.Server(config).run([listener])


def bind(host: str, port: int) -> socket.socket:
    """A socket that holds the address; connections are refused until the server listens.

    Raises:
      ValueError: where it cannot be had.
    """
    if port > 65535:
        raise ValueError(f"--port={port} must be at most 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(
            f"--host={host} --port={port} cannot be listened on: {reason}; give another --port"
        ) from error
    return listener


def make(
    options: argparse.Namespace, model: Any, draft: Any, max_len: int, api_key: str | None
) -> Any:
    """The application with its engine running."""
    from jaxtrain.serving.app import Limits, make_app
    from jaxtrain.serving.worker import Worker

    engine = model.engine(
        max_len=max_len, num_slots=options.num_slots, chunk=options.chunk, draft=draft
    )
    worker = Worker(model, engine, options.max_waiting)
    limits = Limits(max_len, options.max_body_bytes, api_key)
    return make_app(
        model, options.name, worker, limits, lambda: arguments.say_drafted(engine.num_drafted)
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _arguments() -> argparse.ArgumentParser:
    parser = launch.parser(__doc__)
    arguments.add_model(parser)
    arguments.add_draft(parser)
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="(%(default)s)")
    parser.add_argument(
        "--name", default="jaxtrain", metavar="NAME", help="what requests call it (%(default)s)"
    )
    add = arguments.counts(parser)
    add("--port", 8000, "N", "TCP port")
    add("--num_slots", 8, "N", "answers that are drawn at the same time")
    add("--chunk", 8, "N", "passes of the model between two pieces of a stream")
    add("--max_waiting", 1024, "N", "answers asked for and not finished; more are refused")
    add("--max_body_bytes", 4_000_000, "N", "size of a request")
    return parser


if __name__ == "__main__":
    launch.run(main)
