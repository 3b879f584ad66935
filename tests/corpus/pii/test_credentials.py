import random
import string

import pytest

from jaxtrain.corpus.pii.credentials import api_keys, private_keys

_RANDOM = random.Random(0)


def _drawn(length, alphabet=string.ascii_letters + string.digits):
    return "".join(_RANDOM.choice(alphabet) for _ in range(length))


def _found(finder, text):
    return [text[start:end] for start, end in finder(text)]


# Drawn here, of the forms that the issuers publish.
KEYS = [
    "AKIA" + _drawn(16, string.ascii_uppercase + "234567"),
    "AIza" + _drawn(35),
    "ghp_" + _drawn(36),
    "github_pat_" + _drawn(22) + "_" + _drawn(59),
    "glpat-" + _drawn(20),
    "xoxb-" + _drawn(12, string.digits) + "-" + _drawn(24),
    "sk-" + _drawn(48),
    "sk-ant-api03-" + _drawn(95),
    "sk_live_" + _drawn(24),
    "hf_" + _drawn(34),
    "SG." + _drawn(22) + "." + _drawn(43),
    "npm_" + _drawn(36),
    "LTAI" + _drawn(20),
    "eyJ" + _drawn(30) + ".eyJ" + _drawn(80) + "." + _drawn(43),
]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key[:8])
def test_keys_of_published_forms_are_found_whole(key):
    assert _found(api_keys, f"use {key}.\n") == [key]
    assert _found(api_keys, f"x{key}") == []


@pytest.mark.parametrize(
    "name",
    ["api_key", "API-KEY", '"accessToken"', "client_secret", "AWS_SECRET_ACCESS_KEY", "password"],
)
def test_random_values_of_secret_names_are_found(name):
    value = _drawn(32)
    for text in (f'{name} = "{value}"', f"{name}: {value}\n", f"{name}={value};"):
        assert _found(api_keys, text) == [value]


@pytest.mark.parametrize(
    "text",
    [
        "api_key = os.environ['SERVICE_API_KEY_OF_TODAY']",
        "password: aaaaaaaaaaaaaaaaaaaaaaaaa1",
        "secret_key = your_secret_key_goes_right_here",
        "sha1 = da39a3ee5e6b4b0d3255bfef95601890afd80709",  # names no secret
        "https://example.org/a-long-path-of-words-sk-and-more",
        "task-oriented-and-risk-averse-people-everywhere",
        "the token: see https://example.org/docs/authentication",
    ],
)
def test_words_hashes_and_paths_are_no_keys(text):
    assert _found(api_keys, text) == []


BODY = "\n".join(_drawn(64) for _ in range(5))


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
def test_private_keys_are_found_as_whole_blocks(kind):
    block = f"-----BEGIN {kind}PRIVATE KEY-----\n{BODY}\n-----END {kind}PRIVATE KEY-----"
    assert _found(private_keys, f"before\n{block}\nafter") == [block]


def test_openpgp_block_with_headers_is_found():
    mark = "PGP PRIVATE KEY BLOCK-----"
    block = f"-----BEGIN {mark}\nVersion: 1\n\n{BODY}\n=abcd\n-----END {mark}"
    assert _found(private_keys, f"{block}\nafter") == [block]


def test_block_whose_end_is_cut_off_ends_with_its_last_line():
    block = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}"
    assert _found(private_keys, f"{block}\nThe text goes on here.") == [block]


def test_public_keys_and_certificates_stay():
    for kind in ("PUBLIC KEY", "CERTIFICATE"):
        text = f"-----BEGIN {kind}-----\n{BODY}\n-----END {kind}-----"
        assert _found(private_keys, text) == []
    assert _found(private_keys, "a PRIVATE KEY is secret") == []
