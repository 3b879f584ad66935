"""The server, asked by the client package that its users have."""

import asyncio
import json
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

openai = pytest.importorskip("openai")
uvicorn = pytest.importorskip("uvicorn")

from jaxtrain.decode.sampling import Sampling  # noqa: E402
from jaxtrain.serving import app as app_module  # noqa: E402
from jaxtrain.serving.answers import (  # noqa: E402
    Answer,
    Ask,
    answer_all,
    chat_prompt,
    text_prompt,
)
from jaxtrain.serving.app import Limits, make_app  # noqa: E402
from jaxtrain.serving.worker import Worker  # noqa: E402

KEY = "secret"
HELLO = [{"role": "user", "content": "red fox <|end|>"}]


@pytest.fixture(scope="module")
def expected(text_model):
    """Greedy answers by an engine of its own, made before the server takes slots."""
    engine = text_model.engine(max_len=64, num_slots=4, chunk=4)

    def of(ids, length, seed=None):
        sampling = Sampling(temperature=0.0) if seed is None else Sampling(seed=seed)
        pieces = [p for _, p in answer_all(text_model, engine, [Ask(ids, length, sampling)])]
        return "".join(piece.text for piece in pieces), pieces

    return of


@pytest.fixture(scope="module")
def address(text_model):
    worker = Worker(
        text_model, text_model.engine(max_len=64, num_slots=4, chunk=4), max_waiting=500
    )
    app = make_app(text_model, "fox", worker, Limits(64, 20_000, KEY))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()
    assert not worker.is_alive


@pytest.fixture(scope="module")
def client(address):
    return openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0)


def test_a_completion_is_what_the_engine_draws(client, text_model, expected):
    text, _ = expected(text_prompt(text_model, "red"), 12)
    found = client.completions.create(model="fox", prompt="red", max_tokens=12, temperature=0)
    assert found.choices[0].text == text
    assert found.choices[0].finish_reason in ("stop", "length")
    assert found.usage.prompt_tokens == len(text_prompt(text_model, "red"))
    assert found.object == "text_completion"


def test_several_prompts_and_samples_come_in_order(client, text_model, expected):
    found = client.completions.create(
        model="fox", prompt=["red", "an old"], n=2, max_tokens=6, seed=9
    )
    texts = [
        expected(text_prompt(text_model, prompt), 6, seed)[0]
        for prompt in ("red", "an old")
        for seed in (9, 10)
    ]
    assert [choice.text for choice in found.choices] == texts
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]


def test_a_prompt_may_be_token_ids(client, expected):
    text, _ = expected([5, 6, 7], 6)
    found = client.completions.create(model="fox", prompt=[5, 6, 7], max_tokens=6, temperature=0)
    assert found.choices[0].text == text


def test_a_chat_uses_the_models_template(client, text_model, expected):
    text, pieces = expected(chat_prompt(text_model, HELLO), 64 - 30)
    found = client.chat.completions.create(
        model="fox", messages=HELLO, max_completion_tokens=64 - 30, temperature=0
    )
    assert found.choices[0].message.content == text
    assert found.choices[0].message.role == "assistant"
    assert found.choices[0].finish_reason == pieces[-1].finish


def test_a_stream_joins_to_the_whole_and_ends_with_usage(client):
    options = {"model": "fox", "messages": HELLO, "temperature": 0, "max_tokens": 20}
    whole = client.chat.completions.create(**options)
    chunks = list(
        client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == (
        whole.choices[0].finish_reason
    )
    assert len(chunks) > 3


def test_logprobs_are_the_engines(client, text_model, expected):
    _, pieces = expected(chat_prompt(text_model, HELLO), 6)
    found = client.chat.completions.create(
        model="fox", messages=HELLO, max_tokens=6, temperature=0, logprobs=True, top_logprobs=2
    )
    content = found.choices[0].logprobs.content
    drawn = [value for piece in pieces for value in piece.logprobs]
    assert [each.logprob for each in content] == pytest.approx(drawn, abs=1e-6)
    for each in content:
        assert len(each.top_logprobs) == 2
        assert each.top_logprobs[0].logprob == pytest.approx(each.logprob, abs=1e-6)  # greedy
        whole = bytes(each.bytes).decode(errors="ignore")
        assert each.token == whole or each.token.startswith("bytes:\\x")
    text = client.completions.create(
        model="fox", prompt="red", max_tokens=5, temperature=0, logprobs=2
    )
    found = text.choices[0].logprobs
    assert found.text_offset[0] == 0
    assert [len(top) for top in found.top_logprobs] == [2] * len(found.tokens)


def test_a_stop_string_is_not_returned(client):
    whole = client.completions.create(model="fox", prompt="red", max_tokens=20, temperature=0)
    stop = whole.choices[0].text[4:7]
    for given in (stop, [stop]):
        found = client.completions.create(
            model="fox", prompt="red", max_tokens=20, temperature=0, stop=given
        )
        assert found.choices[0].text == whole.choices[0].text.split(stop)[0]
        assert found.choices[0].finish_reason == "stop"


def test_two_hundred_requests_at_once_are_all_answered(address):
    async def ask_all():
        async with openai.AsyncOpenAI(
            base_url=f"{address}/v1", api_key=KEY, max_retries=0, timeout=300
        ) as client:
            return await asyncio.gather(
                *(
                    client.completions.create(
                        model="fox", prompt="red", max_tokens=4, seed=number, temperature=1
                    )
                    for number in range(200)
                )
            )

    answers = asyncio.run(ask_all())
    assert len(answers) == 200
    assert all(answer.usage.completion_tokens >= 1 for answer in answers)
    assert len({answer.choices[0].text for answer in answers}) > 20


def test_a_client_that_leaves_frees_its_slot(client):
    stream = client.completions.create(
        model="fox", prompt="a", max_tokens=60, stream=True, temperature=0
    )
    next(iter(stream))
    stream.close()
    found = client.completions.create(model="fox", prompt="red", max_tokens=4)
    assert found.usage.completion_tokens >= 1


def post(address, path, body, key=KEY):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{address}{path}", data, {"Authorization": f"Bearer {key}"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("completions", {"prompt": "a", "max_tokens": 64}, 400, "together more than the 64"),
        ("completions", {"prompt": "a" * 5000}, 400, "together more than the 64"),
        ("completions", {"prompt": "a" * 30_000}, 413, "larger than 20,000 bytes"),
        ("completions", b"{", 400, "not JSON"),
        ("completions", b"[" * 10_000, 400, "not JSON"),
        ("completions", [1], 400, "must be a JSON object"),
        ("completions", {"prompt": 3}, 400, "prompt must be a text"),
        ("completions", {"prompt": []}, 400, "prompt is empty"),
        ("completions", {"prompt": [99999]}, 400, "the prompt has id 99999"),
        ("completions", {"prompt": "a", "temprature": 0}, 400, "temprature is not a field"),
        ("completions", {"prompt": "a", "temperature": -1}, 400, "temperature=-1.0 must be"),
        ("completions", {"prompt": "a", "temperature": "hot"}, 400, "must be a number"),
        ("completions", {"prompt": "a", "n": 0}, 400, "n=0 must be a whole number from 1"),
        ("completions", {"prompt": "a", "stop": [""]}, 400, "at least one character"),
        ("completions", {"prompt": "a", "logit_bias": {"5": 1}}, 400, "logit_bias is not supp"),
        ("completions", {"prompt": "a", "model": "gpt"}, 404, "model 'gpt' is not served here"),
        ("completions", {"prompt": "a", "stream": 1}, 400, "stream=1 must be true or false"),
        ("completions", b"", 400, "not JSON"),
        ("completions", b'{"prompt": "\xff"}', 400, "not JSON"),
        ("completions", {"prompt": "\ud800"}, 400, "surrogate"),
        ("completions", {"prompt": None, "stop": 5}, 400, "stop=5 must be a string or a list"),
        ("completions", {"prompt": "a", "stop": {"a": 1}}, 400, "must be a string or a list"),
        ("completions", {"prompt": "a", "temperature": 10**400}, 400, "temperature is too large"),
        ("completions", b'{"prompt": "a", "temperature": NaN}', 400, "temperature=nan must be"),
        ("completions", {"prompt": "a", "top_k": 2**31}, 400, "top_k=2147483648 must be"),
        ("completions", {"prompt": "a", "max_tokens": 10**30}, 400, "must be a whole number"),
        ("completions", {"prompt": ["a"] * 300, "n": 2}, 400, "are more than 512 answers"),
        ("completions", {"prompt": [[1, "a"]]}, 400, "prompt must be a text"),
        ("completions", {"prompt": [10**30]}, 400, "the prompt has id 1"),
        ("completions", {"prompt": "a", "stream_options": 3}, 400, "stream_options=3 must be an"),
        ("completions", {"prompt": "a", "model": ["x" * 999]}, 404, "is not served here"),
        ("chat/completions", {"messages": HELLO, "tools": 3}, 400, "tools must be a list"),
        ("chat/completions", {"messages": HELLO, "tools": [3]}, 400, "tools[0] must be an object"),
        ("chat/completions", {"messages": HELLO, "tools": [{"name": "f"}]}, 400, "leaves out the"),
        (
            "chat/completions",
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [None]}]},
            400,
            "must have a function",
        ),
        (
            "chat/completions",
            b'{"messages": [{"role": "user", "content": "a", "x": '
            + b"[" * 900
            + b"]" * 900
            + b"}]}",
            400,
            "nested too deeply",
        ),
        ("nowhere", {}, 404, "POST /v1/nowhere: not found"),
        ("models", {}, 405, "POST /v1/models: method not allowed"),
        ("chat/completions", {}, 400, "messages must be a list"),
        ("chat/completions", {"messages": [{"role": "x"}]}, 400, r"messages[0].role='x'"),
        (
            "chat/completions",
            {"messages": HELLO, "top_logprobs": 3},
            400,
            "top_logprobs needs logprobs=true",
        ),
    ],
)
def test_a_bad_request_is_refused_with_the_reason(address, path, body, status, message):
    found, content = post(address, f"/v1/{path}", body)
    assert found == status
    assert message in content["error"]["message"]
    assert "\n" not in content["error"]["message"]


def raw(address, content: bytes) -> socket.socket:
    """A connection on which `content` was sent as it is."""
    connection = socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])), 30)
    connection.sendall(content)
    return connection


HEAD = (
    f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    "Content-Length: {}\r\n\r\n"
)


def test_clients_that_leave_at_any_stage_hold_no_slot(address, client):
    body = json.dumps({"prompt": "a", "max_tokens": 60, "stream": True, "n": 4}).encode()
    whole = HEAD.format(len(body)).encode() + body
    for cut in (10, len(whole) - len(body), len(whole) - 5, len(whole)):
        for _ in range(5):
            raw(address, whole[:cut]).close()
    unread = [raw(address, whole) for _ in range(5)]  # open, and never read
    found = client.completions.create(model="fox", prompt="red", max_tokens=4)
    assert found.usage.completion_tokens >= 1
    for connection in unread:
        connection.close()


class Endless:
    """A worker whose answers never come."""

    num_open = 0

    async def answer(self, ask):
        self.num_open += 1
        try:
            while True:
                await asyncio.sleep(0.01)
            yield  # pragma: no cover
        finally:
            self.num_open -= 1


@pytest.mark.parametrize("stream", [False, True])
def test_all_answers_end_when_their_client_goes_before_the_first_piece(text_model, stream):
    worker = Endless()
    app = make_app(text_model, "fox", worker, Limits(64, 20_000, None))
    body = json.dumps({"prompt": "a", "n": 3, "stream": stream}).encode()
    path = "/v1/completions"
    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    sent, coming = [], iter([{"type": "http.request", "body": body}])

    async def receive():
        message = next(coming, None)
        if message is None:
            while not worker.num_open:
                await asyncio.sleep(0.01)
            return {"type": "http.disconnect"}
        return message

    async def send(message):
        sent.append(message)

    asyncio.run(asyncio.wait_for(app(scope, receive, send), 30))
    assert worker.num_open == 0
    assert sent[0]["status"] == 499


def test_a_request_that_does_not_arrive_is_given_up(address, monkeypatch):
    monkeypatch.setattr(app_module, "BODY_SECS", 0.2)
    connection = raw(address, HEAD.format(50).encode() + b"{")
    assert connection.recv(1000).startswith(b"HTTP/1.1 408")


def test_a_model_that_has_nothing_to_draw_from_fails_one_request(
    address, client, text_model, monkeypatch
):
    take = Answer.take
    monkeypatch.setattr(
        Answer, "take", lambda self, emitted: take(self, emitted._replace(finish="failed"))
    )
    for stream in (False, True):
        status, content = post(
            address, "/v1/completions", {"prompt": "a", "max_tokens": 3, "stream": stream}
        )
        assert (status, content["error"]["type"]) == (500, "server_error")
        assert "logits are NaN or infinite" in content["error"]["message"]
    monkeypatch.undo()
    assert client.completions.create(model="fox", prompt="red", max_tokens=4).choices


def test_likeliest_ids_are_of_the_tokenizer(client):
    """The model has one more row than the tokenizer has ids."""
    found = client.chat.completions.create(
        model="fox", messages=HELLO, max_tokens=9, logprobs=True, top_logprobs=20
    )
    assert all(len(each.top_logprobs) == 20 for each in found.choices[0].logprobs.content)


def test_the_api_key_is_wanted(address):
    status, content = post(address, "/v1/completions", {"prompt": "a"}, key="guess")
    assert (status, content["error"]["type"]) == (401, "authentication_error")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0).models.list()


def test_the_model_is_listed_and_health_needs_no_key(client, address):
    assert [model.id for model in client.models.list()] == ["fox"]
    assert client.models.retrieve("fox").id == "fox"
    with pytest.raises(openai.NotFoundError, match="model 'gpt' is not served here"):
        client.models.retrieve("gpt")
    with urllib.request.urlopen(f"{address}/health") as response:
        assert json.load(response) == {"status": "ok"}
