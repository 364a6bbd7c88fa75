"""Endpoints and configuration strings: the values of defects.md 2.12, and that formatting is parsing backwards."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from arendezvous.endpoint import format_endpoint, parse_rendezvous_config, parse_rendezvous_endpoint

PORTS = st.integers(0, 65535)
LABELS = st.from_regex(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,30}[A-Za-z0-9_])?", fullmatch=True)
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join).filter(lambda name: not name.replace(".", "").isdigit())
ZONES = st.from_regex(r"[A-Za-z0-9_.@-]{1,15}", fullmatch=True)
IPV6 = st.one_of(
    st.ip_addresses(v=6).map(str),
    st.ip_addresses(v=6).map(lambda ip: ip.exploded),
    st.tuples(st.ip_addresses(v=6), ZONES).map(lambda pair: f"{pair[0]}%{pair[1]}"),
)
HOSTS = st.one_of(NAMES, st.ip_addresses(v=4).map(str), IPV6)


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        (None, ("localhost", 29400)),
        ("", ("localhost", 29400)),
        ("  ", ("localhost", 29400)),
        ("\t\n", ("localhost", 29400)),
        ("[::1]:29400", ("::1", 29400)),
        ("[::1]", ("::1", 29400)),
        ("::1", ("::1", 29400)),
        ("[2001:db8::1]:65535", ("2001:db8::1", 65535)),
        ("host:0", ("host", 0)),
        ("host:65535", ("host", 65535)),
        ("[fe80::1%eth0]:80", ("fe80::1%eth0", 80)),
        ("fe80::1%eth0", ("fe80::1%eth0", 29400)),
        # R44: split at the first colon, this was the host "fdaa".
        ("[fdaa:5137::1]:29521", ("fdaa:5137::1", 29521)),
        ("host", ("host", 29400)),
        ("dummy.com:123", ("dummy.com", 123)),
        ("dummy.com.:123", ("dummy.com.", 123)),
        ("my_service-0.ns.svc:80", ("my_service-0.ns.svc", 80)),
        ("münchen.example:80", ("münchen.example", 80)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("::", ("::", 29400)),
        ("::ffff:127.0.0.1", ("::ffff:127.0.0.1", 29400)),
        ("2001:0db8:85a3:0000:0000:8a2e:0370:7334", ("2001:0db8:85a3:0000:0000:8a2e:0370:7334", 29400)),
        ("123:80", ("123", 80)),
    ],
)
def test_a_valid_endpoint_is_split(endpoint: str | None, expected: tuple[str, int]) -> None:
    assert parse_rendezvous_endpoint(endpoint, 29400) == expected


@pytest.mark.parametrize(
    "endpoint",
    [
        "host:",
        "host:-1",
        "host:65536",
        "host:1_0",
        "host: 80",
        "host:80 ",
        "host:+80",
        "host:abc",
        "host:-",
        "host:8٠",
        "host:" + "9" * 5000,
        # R46: the first release wrapped these silently.
        "host:123456",
        "host:92345",
        "[::1]:",
        "[::1]:65536",
    ],
)
def test_a_bad_port_is_refused_with_its_range(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"port number .* between 0 and 65535") as info:
        parse_rendezvous_endpoint(endpoint, 29400)
    assert repr(endpoint) in str(info.value)


@pytest.mark.parametrize(
    "endpoint",
    [
        ":29400",
        ":",
        "[]",
        "[]:80",
        "[::1",
        "[::1]80",
        "[::1]]:80",
        "http://host:80",
        "ho st:1",
        "[host]:80",
        "[127.0.0.1]:80",
        "a:b:80",
        "host\n:80",
        "host:80\n",
        "ho\x00st:80",
        "ho\x7fst",
        "host\u200b:80",
        "~",
        "~:123",
        "dummy.com ",
        "dummy.com :123",
        " host:80",
        "*",
        "v*:80",
        ".host:80",
        "a..b:80",
        "256.0.0.1:80",
        "010.0.0.1:80",
        "x" * 64 + ":80",
        ".".join(["x" * 60] * 5),
        "[fe80::1%]:80",
        "[fe80::1%a b]:80",
        "[fe80::1%a%b]:80",
    ],
)
def test_a_bad_host_is_refused_by_name(endpoint: str) -> None:
    with pytest.raises(ValueError, match="hostname") as info:
        parse_rendezvous_endpoint(endpoint, 29400)
    assert repr(endpoint) in str(info.value)


@pytest.mark.parametrize("endpoint", ["2001:db8::1:29400", "1:2:3:4:5:6:7:8:80", "::1%eth0:80"])
def test_an_ipv6_address_that_runs_into_its_port_is_ambiguous(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"ambiguous: bracket the IPv6 address"):
        parse_rendezvous_endpoint(endpoint, 29400)


def test_the_default_port_is_given_back_whatever_it_is() -> None:
    assert parse_rendezvous_endpoint("host", -1) == ("host", -1)


@given(HOSTS, PORTS)
@example("::1", 0)
@example("fe80::1%eth0", 65535)
@example("localhost", 29400)
def test_parsing_a_formatted_endpoint_gives_back_host_and_port(host: str, port: int) -> None:
    assert parse_rendezvous_endpoint(format_endpoint(host, port), 1) == (host, port)


@given(HOSTS)
def test_a_host_alone_gets_the_default_port(host: str) -> None:
    assert parse_rendezvous_endpoint(host, 29400) == (host, 29400)


@given(IPV6, PORTS)
def test_formatting_always_brackets_ipv6(host: str, port: int) -> None:
    assert format_endpoint(host, port) == f"[{host}]:{port}"


@given(st.one_of(st.text(max_size=30), st.text("[]:%.0123456789abfé-_ *~/@\n", max_size=30)))
@example("[")
@example("%")
@example("[%]")
@example("xn--a")
@example("٣.٣.٣.٣")
def test_any_text_gives_an_endpoint_that_formats_or_a_value_error(text: str) -> None:
    try:
        host, port = parse_rendezvous_endpoint(text, 7)
    except ValueError:
        return
    assert 0 <= port <= 65535
    assert parse_rendezvous_endpoint(format_endpoint(host, port), 1) == (host, port)
    # What was accepted never makes a resolver fail with a bare UnicodeError.
    host.encode("idna")


@given(st.text(max_size=20), st.integers())
def test_formatting_says_nothing_that_parsing_reads_otherwise(host: str, port: int) -> None:
    try:
        endpoint = format_endpoint(host, port)
    except ValueError:
        return
    assert parse_rendezvous_endpoint(endpoint, 1) == (host, port)


@pytest.mark.parametrize(("host", "port"), [("", 1), ("[::1]", 1), ("a:b", 1), ("h", -1), ("h", 65536), ("h", True)])
def test_formatting_refuses_what_no_endpoint_can_say(host: str, port: int) -> None:
    with pytest.raises(ValueError, match="rendezvous endpoint"):
        format_endpoint(host, port)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" b= x ,c=y=z", {"b": "x", "c": "y=z"}),
        ("", {}),
        ("   ", {}),
        ("a=1", {"a": "1"}),
        ("a=b c", {"a": "b c"}),
        ("a==", {"a": "="}),
    ],
)
def test_a_configuration_string_is_read(text: str, expected: dict[str, str]) -> None:
    assert parse_rendezvous_config(text) == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a", "'a'"),
        ("a=", "'a'"),
        ("a= ,b=1", "'a'"),
        ("a=1,", "without a key"),
        ("=1", "without a key"),
        (" =1", "without a key"),
        ("a=1,,b=2", "without a key"),
        (",", "without a key"),
        ("a=1,b=2,a=3", "'a' is given twice"),
    ],
)
def test_a_faulty_configuration_string_is_refused_by_entry(text: str, named: str) -> None:
    with pytest.raises(ValueError, match="rendezvous configuration") as info:
        parse_rendezvous_config(text)
    assert named in str(info.value)


CONFIG_TEXT = st.text(st.characters(exclude_characters=",=", exclude_categories=["Cs"]), min_size=1).map(str.strip)


@given(st.dictionaries(CONFIG_TEXT.filter(bool), CONFIG_TEXT.filter(bool), max_size=5))
def test_any_options_without_commas_survive_the_configuration_string(options: dict[str, str]) -> None:
    text = " , ".join(f"{key} = {value}" for key, value in options.items())
    assert parse_rendezvous_config(text) == options
