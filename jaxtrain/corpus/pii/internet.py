"""E-mail addresses and public IP addresses."""

import ipaddress
import re
from collections.abc import Iterator, Sequence

from jaxtrain.corpus.pii.digits import Run

# RFC 5321 allows 64 characters before the @ and 255 after it; of the characters that RFC 5322
# allows before it, those that are in use. A domain is dot-separated labels, the last of letters.
_LOCAL = re.compile(r"[A-Za-z0-9_+](?:[A-Za-z0-9_+%'-]|\.(?!\.)){0,63}\Z")
_DOMAIN = re.compile(
    r"@((?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}"
    r"(?:[A-Za-z]{2,24}|xn--[A-Za-z0-9-]{2,59}))(?![A-Za-z0-9_-]|\.[A-Za-z0-9])"
)
_LOCAL_SPAN = 64
# "icon@2x.png", "button@hover.svg": names of files, not of people.
_FILE_ENDINGS = frozenset(
    re.findall(
        "[a-z0-9]+",
        "avif bmp css gif htm html ico jpeg jpg js json jsx mp3 mp4 pdf png svg tiff ts tsx webp",
    )
)

_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![0-9A-Za-z_]|\.[0-9A-Za-z])")
_IPV4_EXACT = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}")
# A number of four parts after one of these words numbers a program or a section.
_VERSION = re.compile(
    r"(?:\bv|version|ver|release|rev|build|firmware|driver|update|section|chapter|clause|版本|版)"
    r"[ .:=#]{0,3}\Z",
    re.IGNORECASE,
)
_VERSION_SPAN = 16
_IPV6_CORE = re.compile(r":[0-9A-Fa-f]{0,4}:")
_IPV6_BEFORE = re.compile(r"[0-9A-Fa-f:]{0,45}\Z")
_IPV6_AFTER = re.compile(r"[0-9A-Fa-f:]{0,45}(?:(?<=:)[0-9]{1,3}(?:\.[0-9]{1,3}){3})?")


def emails(text: str) -> Iterator[tuple[int, int]]:
    """Addresses of the form local@domain.tld."""
    at = text.find("@")
    while at >= 0:
        domain = _DOMAIN.match(text, at)
        if domain and domain.end() - at <= 256 and _is_domain_of_people(domain[1]):
            local = _local_part(text, at)
            if local < at:
                yield local, domain.end()
        at = text.find("@", domain.end() if domain else at + 1)


def _local_part(text: str, at: int) -> int:
    """Where the local part before the @ begins; `at` where there is none."""
    window = text[max(0, at - _LOCAL_SPAN) : at]
    if not window or window[-1] in ".%'-":
        return at
    match = _LOCAL.search(window)
    return at - len(match[0]) if match else at


def _is_domain_of_people(domain: str) -> bool:
    return domain.rpartition(".")[2].lower() not in _FILE_ENDINGS


def ip_addresses(text: str, runs: Sequence[Run]) -> Iterator[tuple[int, int]]:
    """IPv4 and IPv6 addresses of the public internet; private and reserved ones name nobody."""
    for start, end in runs:
        if text.count(".", start, end) >= 3:
            yield from _ipv4(text, start, end)
    yield from _ipv6(text)


def _ipv4(text: str, run_start: int, run_end: int) -> Iterator[tuple[int, int]]:
    for match in _IPV4.finditer(text, run_start, min(run_end + 2, len(text))):
        start, end = match.span()
        before = text[max(0, start - _VERSION_SPAN) : start]
        if before and (before[-1] in "._-" or (before[-1].isascii() and before[-1].isalnum())):
            continue
        if _IPV4_EXACT.fullmatch(match[0]) and not _VERSION.search(before) and _is_public(match[0]):
            yield start, end


def _ipv6(text: str) -> Iterator[tuple[int, int]]:
    done = 0
    for core in _IPV6_CORE.finditer(text):
        if core.start() < done:
            continue
        before = _IPV6_BEFORE.search(text, max(0, core.start() - 45), core.start())
        after = _IPV6_AFTER.match(text, core.end())
        start = before.start() if before else core.start()
        end = after.end() if after else core.end()
        done = end
        if text[end - 1] == ":" and text[end - 2] != ":":
            end -= 1  # the colon of a sentence
        neighbours = text[max(0, start - 1) : start] + text[end : end + 1]
        address = text[start:end]
        if not _in_word(neighbours) and _is_ipv6_form(address) and _is_public(address):
            yield start, end


def _is_ipv6_form(address: str) -> bool:
    """Eight groups, or fewer that begin as global unicast addresses do (2000::/3): not `a::b`."""
    return "::" not in address or re.match("[23][0-9A-Fa-f]{3}:", address) is not None


def _in_word(neighbours: str) -> bool:
    return any(c == "_" or (c.isascii() and c.isalnum()) for c in neighbours)


def _is_public(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return parsed.is_global and not parsed.is_multicast
