"""A client that loses no question: what passes is tried again, what does not is told apart."""

import threading
import time

import pytest

from jaxtrain.serving.chat_client import ChatServer, Failure, NotServed, Question, ask_all
from tests.serving.stand_in_server import Reply, fault, said, serve

WAIT_SECS = 0.01


def question(text="hello", **settings):
    return Question([{"role": "user", "content": text}], None, settings)


def ask(server, asked=None, **options):
    client = ChatServer(server.url, "m", wait_secs=WAIT_SECS, **options)
    return client.ask(asked or question(), threading.Event())


def test_a_question_is_sent_as_the_api_wants_it_and_its_answer_taken():
    with serve(lambda body, before: said("hi")) as server:
        asked = Question([{"role": "user", "content": "hello"}], [{"name": "f"}], {"seed": 3})
        client = ChatServer(server.url + "/", "m", "secret")
        answer = client.ask(asked, threading.Event())
    assert server.requests == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hello"}],
            "tools": [{"name": "f"}],
            "seed": 3,
        }
    ]
    assert server.keys == ["Bearer secret"]
    assert not isinstance(answer, Failure)
    assert answer["message"]["content"] == "hi"
    assert (answer["finish"], answer["model"]) == ("stop", "stand-in-1")


@pytest.mark.parametrize(
    "passing",
    [
        fault(500),
        fault(503),
        fault(429),
        fault(408),
        Reply(),  # hangs up
        Reply(content=b"{"),  # half an answer
        Reply(content={"choices": []}),
        Reply(content={"choices": [{"message": {"content": 7}}]}),
    ],
    ids=lambda reply: f"{reply.status} {reply.content}",
)
def test_what_passes_is_tried_again(passing):
    with serve(lambda body, before: said("hi") if before == 2 else passing) as server:
        answer = ask(server)
    assert not isinstance(answer, Failure)
    assert answer["message"]["content"] == "hi"
    assert len(server.requests) == 3


def test_an_answer_that_does_not_come_in_time_is_asked_for_again():
    def reply(body, before):
        if not before:
            time.sleep(1)
        return said("hi")

    with serve(reply) as server:
        answer = ask(server, timeout_secs=0.2)
    assert not isinstance(answer, Failure)
    assert len(server.requests) == 2


def test_a_server_may_say_how_long_to_wait():
    with serve(lambda body, before: said("hi") if before else fault(429, Retry_After="0.4")) as s:
        started = time.monotonic()
        ask(s)
    assert time.monotonic() - started >= 0.4


def test_after_as_many_tries_it_is_a_failure_that_passes():
    with serve(lambda body, before: fault(500, "out of memory")) as server:
        answer = ask(server)
    assert answer == Failure("500 Internal Server Error: out of memory", True)
    assert len(server.requests) == 6


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refusal_is_of_one_question_and_is_not_tried_again(status):
    with serve(lambda body, before: fault(status, "too long")) as server:
        answer = ask(server)
    assert isinstance(answer, Failure)
    assert not answer.passes
    assert "too long" in answer.reason
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [401, 403, 404, 302])
def test_what_is_wrong_with_key_address_or_model_ends_everything(status):
    other = "http://127.0.0.1:9/elsewhere"  # a redirect is not followed: the key would go there
    with serve(lambda body, before: fault(status, "no such", Location=other)) as server:
        with pytest.raises(NotServed, match=rf"chat/completions refuses model 'm': {status}"):
            ask(server)
        assert len(server.requests) == 1


def test_nobody_there_is_a_failure_that_passes():
    with serve(lambda body, before: said("hi")) as server:
        pass
    answer = ask(server)
    assert isinstance(answer, Failure)
    assert answer.passes
    assert "refused" in answer.reason


def test_every_question_has_its_own_answer_whatever_the_server_does():
    def reply(body, before):
        number = int(body["messages"][0]["content"])
        failures = [fault(500), fault(429), Reply(), fault(503)][: number % 4]
        return said(f"answer {number}") if before >= len(failures) else failures[before]

    with serve(reply) as server:
        client = ChatServer(server.url, "m", wait_secs=WAIT_SECS)
        questions = ((number, question(str(number))) for number in range(30))
        found = dict(ask_all(client, questions, 6))
    assert {n: a["message"]["content"] for n, a in found.items()} == {
        n: f"answer {n}" for n in range(30)
    }


def test_as_many_questions_as_wanted_are_under_way_at_a_time():
    open_now, most, lock = 0, 0, threading.Lock()

    def reply(body, before):
        nonlocal open_now, most
        with lock:
            open_now += 1
            most = max(most, open_now)
        time.sleep(0.05)
        with lock:
            open_now -= 1
        return said("hi")

    with serve(reply) as server:
        client = ChatServer(server.url, "m")
        assert len(list(ask_all(client, ((n, question(str(n))) for n in range(12)), 4))) == 12
    assert most == 4


def test_a_server_that_answers_nothing_any_more_ends_it():
    def reply(body, before):
        return said("hi") if int(body["messages"][0]["content"]) < 3 else fault(500, "broken")

    kept = []
    with serve(reply) as server:
        client = ChatServer(server.url, "m", wait_secs=1e-4)
        found = ask_all(client, ((n, question(str(n))) for n in range(40)), 1)
        with pytest.raises(NotServed, match=r"16 questions in a row got no answer: 500 .*broken"):
            kept.extend((number, isinstance(answer, Failure)) for number, answer in found)
    assert [number for number, failed in kept if not failed] == [0, 1, 2]
    assert len(kept) == 3 + 16


def test_refusals_of_all_first_questions_end_it_and_later_ones_do_not():
    def reply(body, before):
        is_good = body["messages"][0]["content"] == "good"
        return said("hi") if is_good else fault(400, "no such field")

    bad = [(number, question(str(number))) for number in range(1, 30)]
    with serve(reply) as server:
        client = ChatServer(server.url, "m")
        with pytest.raises(NotServed, match="no such field"):
            list(ask_all(client, bad, 1))
        assert len(list(ask_all(client, [(0, question("good")), *bad], 1))) == 30


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("127.0.0.1:8000/v1", "--server=127.0.0.1:8000/v1 must be an address such as http://"),
        ("ftp://host/v1", "must be an address such as"),
        ("http:///v1", "must be an address such as"),
        ("http://host/v1?key=1", "must be an address such as"),
        ("http://me:word@host/v1", "--server must not hold a password"),
    ],
)
def test_an_address_that_is_none_is_refused(url, message):
    with pytest.raises(ValueError, match=message) as found:
        ChatServer(url, "m")
    assert "word@" not in str(found.value)
