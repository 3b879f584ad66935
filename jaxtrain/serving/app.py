"""The HTTP server: completions and chat completions of the OpenAI API, for one model.

    GET  /health                   200 while the engine works; what became of a draft's tokens
    GET  /v1/models                the one model
    POST /v1/completions           prompt(s) in text or ids
    POST /v1/chat/completions      messages, by the model's own template

Errors have the API's form. A client that goes away cancels its request; one that does not send its
request to the end within BODY_SECS is refused.
"""

import asyncio
import contextlib
import hmac
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from jaxtrain.serving import requests
from jaxtrain.serving.answers import Ask, Piece
from jaxtrain.serving.model import TextModel
from jaxtrain.serving.requests import Parsed
from jaxtrain.serving.responses import Form
from jaxtrain.serving.worker import Busy, Worker

BODY_SECS = 60  # for a request to arrive


class Limits(NamedTuple):
    """What the server accepts."""

    max_len: int  # tokens of prompt and answer
    max_body_bytes: int
    api_key: str | None


class _Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def response(self) -> Response:
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else None
        kinds = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}
        kind = kinds.get(self.status, "invalid_request_error")
        error = {"message": str(self), "type": kind, "param": None, "code": None}
        return JSONResponse({"error": error}, self.status, headers)


def make_app(
    model: TextModel,
    name: str,
    worker: Worker,
    limits: Limits,
    at_end: Callable[[], None] = lambda: None,
) -> Starlette:
    """The application; the worker ends with it, then `at_end` is called."""
    server = _Server(model, name, worker, limits)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(worker.stop)
        at_end()

    return Starlette(
        routes=[
            Route("/health", server.health),
            Route("/v1/models", server.models),
            Route("/v1/models/{name:path}", server.models),
            Route("/v1/completions", server.completions, methods=["POST"]),
            Route("/v1/chat/completions", server.chat_completions, methods=["POST"]),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: _no_such_place, Exception: _fault},
    )


async def _no_such_place(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), error
    what = f"{request.method} {request.url.path}: {error.detail.lower()}"
    return _Refusal(error.status_code, what).response()


async def _fault(_: Request, error: Exception) -> Response:
    return _Refusal(500, f"the server is at fault: {type(error).__name__}; see its log").response()


class _Server:
    def __init__(self, model: TextModel, name: str, worker: Worker, limits: Limits) -> None:
        self.model, self.name, self.worker, self.limits = model, name, worker, limits

    async def health(self, _: Request) -> Response:
        if not self.worker.is_alive:
            return JSONResponse({"status": "the engine has stopped"}, 503)
        if self.worker.num_drafted is None:
            return JSONResponse({"status": "ok"})
        accepted, proposed = self.worker.num_drafted
        draft = {"accepted_tokens": accepted, "proposed_tokens": proposed}
        return JSONResponse({"status": "ok", "draft": draft})

    async def models(self, request: Request) -> Response:
        try:
            self._authorize(request)
        except _Refusal as refusal:
            return refusal.response()
        one = {"id": self.name, "object": "model", "created": 0, "owned_by": "jaxtrain"}
        wanted = request.path_params.get("name")
        if wanted is not None:
            return JSONResponse(one) if wanted == self.name else self._unknown(wanted).response()
        return JSONResponse({"object": "list", "data": [one]})

    async def completions(self, request: Request) -> Response:
        return await self._answer(request, requests.completion, is_chat=False)

    async def chat_completions(self, request: Request) -> Response:
        return await self._answer(request, requests.chat, is_chat=True)

    async def _answer(
        self, request: Request, parse: Callable[..., Parsed], *, is_chat: bool
    ) -> Response:
        try:
            self._authorize(request)
            body = await self._body(request)
            try:
                # Rendering and tokenising a long prompt takes a while: not on the event loop.
                parsed = await asyncio.to_thread(parse, body, self.model, self.limits.max_len)
            except ValueError as error:
                raise _Refusal(400, str(error)) from error
            form = Form(self.model, self.name, is_chat, parsed.gives_logprobs)
            if parsed.is_streamed:
                return await self._stream(request, parsed, form)
            answers = await self._until_gone(request, self._whole(parsed))
            return JSONResponse(form.whole(answers, parsed.num_prompt_tokens))
        except _Refusal as refusal:
            return refusal.response()
        except ClientDisconnect:
            return Response(status_code=499)

    def _authorize(self, request: Request) -> None:
        if self.limits.api_key is None:
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.limits.api_key.encode()):
            raise _Refusal(401, "the API key is missing or wrong; send it as a bearer token")

    async def _body(self, request: Request) -> dict[str, Any]:
        content = bytearray()
        try:
            async with asyncio.timeout(BODY_SECS):
                async for part in request.stream():
                    content += part
                    if len(content) > self.limits.max_body_bytes:
                        raise _Refusal(
                            413, f"the request is larger than {self.limits.max_body_bytes:,} bytes"
                        )
        except TimeoutError as error:
            raise _Refusal(408, f"the request did not arrive in {BODY_SECS} s") from error
        try:
            body = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise _Refusal(400, f"the request is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise _Refusal(400, "the request must be a JSON object")
        wanted = body.get("model", self.name)
        if wanted != self.name:
            raise self._unknown(wanted)
        return body

    def _unknown(self, name: Any) -> _Refusal:
        return _Refusal(404, f"model {name!r:.100} is not served here; this is {self.name!r}")

    async def _whole(self, parsed: Parsed) -> list[list[Piece]]:
        async def one(ask: Ask) -> list[Piece]:
            return [piece async for piece in self._pieces(ask)]

        tasks = [asyncio.ensure_future(one(ask)) for ask in parsed.asks]
        try:
            return await asyncio.gather(*tasks)
        finally:
            await _end(tasks)

    async def _until_gone(self, request: Request, work: Any) -> Any:
        """The result of `work`, which is cancelled when the client goes away."""
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientDisconnect
            return working.result()
        finally:
            await _end([working, leaving])

    async def _stream(self, request: Request, parsed: Parsed, form: Form) -> Response:
        merged = _merge([self._pieces(ask) for ask in parsed.asks])
        try:  # the first piece before the response begins: a refusal has a status of its own
            first = await self._until_gone(request, anext(merged))
        except BaseException:
            await merged.aclose()
            raise

        async def events() -> AsyncIterator[bytes]:
            count = 0
            try:
                for index in range(len(parsed.asks)):
                    beginning = form.begin(index)
                    if beginning is not None:
                        yield _event(beginning)
                pending: tuple[int, Piece] | None = first
                while pending is not None:
                    index, piece = pending
                    count += len(piece.ids)
                    yield _event(form.piece(index, piece))
                    pending = await anext(merged, None)
                if parsed.includes_usage:
                    yield _event(form.final_usage(parsed.num_prompt_tokens, count))
                yield b"data: [DONE]\n\n"
            except _Refusal as refusal:
                yield b"data: " + bytes(refusal.response().body) + b"\n\n"
            finally:
                await merged.aclose()

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _pieces(self, ask: Ask) -> AsyncGenerator[Piece, None]:
        try:
            async with contextlib.aclosing(self.worker.answer(ask)) as pieces:
                async for piece in pieces:
                    yield piece
        except Busy as error:
            raise _Refusal(429, str(error)) from error
        except ValueError as error:
            raise _Refusal(400, str(error)) from error
        except RuntimeError as error:
            raise _Refusal(500, str(error)) from error


async def _left(request: Request) -> None:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return


async def _merge(
    streams: list[AsyncGenerator[Piece, None]],
) -> AsyncGenerator[tuple[int, Piece], None]:
    """(number of the stream, piece) of all streams as they come."""
    found: asyncio.Queue[tuple[int, Piece | BaseException | None]] = asyncio.Queue()

    async def drain(index: int, stream: AsyncGenerator[Piece, None]) -> None:
        try:
            async for piece in stream:
                found.put_nowait((index, piece))
            found.put_nowait((index, None))
        except Exception as error:
            found.put_nowait((index, error))

    tasks = [asyncio.ensure_future(drain(n, stream)) for n, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            index, piece = await found.get()
            if isinstance(piece, BaseException):
                raise piece
            if piece is None:
                left -= 1
            else:
                yield index, piece
    finally:
        await _end(tasks)


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancels tasks and waits until they have cleaned up behind them."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"
