"""A server of chat completions that answers, fails or falls silent as a test says."""

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Reply(NamedTuple):
    """What it sends; `content` None: it hangs up."""

    status: int = 200
    content: Any = None
    headers: dict[str, str] = {}  # noqa: RUF012


def said(text: str, finish: str = "stop", **more: Any) -> Reply:
    message = {"role": "assistant", "content": text, "refusal": None} | more
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return Reply(content={"choices": [choice], "model": "stand-in-1", "usage": {"total_tokens": 7}})


def fault(status: int, message: str = "as the test wants", **headers: str) -> Reply:
    return Reply(status, {"error": {"message": message}}, headers)


class Server(NamedTuple):
    url: str
    requests: list[dict[str, Any]]  # bodies
    keys: list[str | None]


@contextlib.contextmanager
def serve(reply: Callable[[dict[str, Any], int], Reply]) -> Iterator[Server]:
    """Args: reply: (body, how often this body was sent before) -> what to send."""
    server = Server("", [], [])
    lock = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                before = server.requests.count(body)
                server.requests.append(body)
                server.keys.append(self.headers.get("Authorization"))
            status, content, headers = reply(body, before)
            if content is None:
                self.close_connection = True
                return
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, format, *args):
            pass

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    thread = threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server._replace(url=f"http://127.0.0.1:{listener.server_port}/v1")
    finally:
        listener.shutdown()
        listener.server_close()
