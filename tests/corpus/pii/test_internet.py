import pytest

from jaxtrain.corpus.pii.digits import digit_runs
from jaxtrain.corpus.pii.internet import emails, ip_addresses


def _emails(text):
    return [text[start:end] for start, end in emails(text)]


def _addresses(text):
    return [text[start:end] for start, end in ip_addresses(text, digit_runs(text))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mail a.b_c+d@x-y.example.com.", ["a.b_c+d@x-y.example.com"]),
        ("邮箱foo@bar.com。", ["foo@bar.com"]),
        ("<foo@bar.com>,baz@bar.org;", ["foo@bar.com", "baz@bar.org"]),
        ("mailto:foo@bar.com?subject=hi", ["foo@bar.com"]),
        ("x@xn--bcher-kva.xn--p1ai", ["x@xn--bcher-kva.xn--p1ai"]),
        ("'o'neill@example.ie'", ["o'neill@example.ie"]),
        ("a@b@c.com", ["b@c.com"]),
        ("logo@2x.png, @handle, a@b, a @ b.com, a.@b.com, @ 5.00", []),
        ("user@host.c1 foo@-bar.com", []),
        ("x" * 70 + "@example.com", ["x" * 64 + "@example.com"]),
    ],
)
def test_emails_are_found_whole(text, expected):
    assert _emails(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8.8.8.8", ["8.8.8.8"]),
        ("from 93.184.216.34:8080, 1.1.1.1.", ["93.184.216.34", "1.1.1.1"]),
        ("8.8.8.8/24 and 9.9.9.9", ["8.8.8.8", "9.9.9.9"]),
        ("服务器8.8.4.4在", ["8.8.4.4"]),
        ("10.1.2.3 192.168.0.1 172.16.0.9 127.0.0.1 169.254.1.1 224.0.0.1 0.0.0.0", []),
        ("192.0.2.1 198.51.100.7 203.0.113.9", []),  # RFC 5737, for documentation
        ("999.10.1.1 256.1.1.1 08.8.8.8 1.2.3 1.2.3.4.5", []),
        ("version 4.5.6.7, v4.5.6.7, Firmware: 4.5.6.7, chapter 4.5.6.7", []),
        ("lib-4.5.6.7 a4.5.6.7 4.5.6.7b 4.5.6.7.in-addr.arpa", []),
    ],
)
def test_public_ipv4_addresses_are_found_and_versions_are_not(text, expected):
    assert _addresses(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("at 2001:4860:4860::8888.", ["2001:4860:4860::8888"]),
        ("[2606:4700:4700:0:0:0:0:1111]:443", ["2606:4700:4700:0:0:0:0:1111"]),
        ("seen: 2a00:1450:4001:81b::200e: ok", ["2a00:1450:4001:81b::200e"]),
        ("::1 fe80::1 fc00::2 ff02::1 2001:db8::1", []),
        ("std::vector<int> a::b 12:30:45 10:20:30:40 f::g()", []),
        ("01:23:45:67:89:ab", []),  # a hardware address
    ],
)
def test_public_ipv6_addresses_are_found_and_names_and_times_are_not(text, expected):
    assert _addresses(text) == expected
