"""HPACK against an independent implementation, across requests, and against everything that is not HPACK."""

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero_http.http2.hpack import (
    DynamicTable,
    HeaderListTooLarge,
    HpackError,
    decode_block,
    encode_block,
)

NAMES = st.sampled_from([b":path", b":method", b"content-type", b"user-agent", b"x", b"grpc-timeout"]) | st.binary(
    min_size=1, max_size=40
)
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=200) | st.sampled_from([b"POST", b"application/grpc"])))
REQUESTS = st.lists(st.tuples(FIELDS, st.booleans(), st.none() | st.integers(0, 4096)), max_size=12)
PLENTY = 1 << 20


@given(REQUESTS)
@settings(max_examples=200)
def test_blocks_of_a_connection_decode_to_what_hpack_encoded(
    requests: list[tuple[list[tuple[bytes, bytes]], bool, int | None]],
) -> None:
    encoder, table = hpack.Encoder(), DynamicTable()
    for fields, coded, size in requests:
        if size is not None:
            encoder.header_table_size = size
        block = encoder.encode(fields, huffman=coded)

        got, table = decode_block(block, table, PLENTY)

        assert got == fields
        assert table.size == sum(len(name) + len(value) + 32 for name, value in table.entries) <= table.limit


@given(st.lists(FIELDS, max_size=5))
def test_our_blocks_decode_in_hpack_and_leave_its_table_unchanged(requests: list[list[tuple[bytes, bytes]]]) -> None:
    decoder = hpack.Decoder(max_header_list_size=PLENTY)
    for fields in requests:
        assert [tuple(field) for field in decoder.decode(encode_block(fields), raw=True)] == fields
    assert not decoder.header_table.dynamic_entries


@given(st.lists(st.binary(max_size=80), max_size=6))
@settings(max_examples=300)
def test_any_bytes_decode_as_in_hpack_or_are_refused(blocks: list[bytes]) -> None:
    decoder, table = hpack.Decoder(max_header_list_size=PLENTY), DynamicTable()
    for block in blocks:
        try:
            expected = [tuple(field) for field in decoder.decode(block, raw=True)]
        except hpack.HPACKError:
            expected = None
        try:
            got, table = decode_block(block, table, PLENTY)
        except HpackError as error:
            assert expected is None or "table size updates" in str(error)
            return
        assert got == expected


def test_a_block_that_changes_nothing_returns_the_same_table() -> None:
    encoder = hpack.Encoder()
    fields = [(b":method", b"POST"), (b"x", b"y")]
    _, table = decode_block(encoder.encode(fields), DynamicTable(), PLENTY)

    again, same = decode_block(encoder.encode(fields), table, PLENTY)

    assert (again, same is table, table.entries) == (fields, True, ((b"x", b"y"),))


def test_fields_that_are_too_large_still_enter_the_table() -> None:
    encoder = hpack.Encoder()
    block = encoder.encode([(b"x", b"v" * 900), (b"y", b"small")])

    fields, table = decode_block(block, DynamicTable(), 500)

    assert fields is None
    assert decode_block(encoder.encode([(b"y", b"small")]), table, 500)[0] == [(b"y", b"small")]


def test_a_header_bomb_is_not_decoded_to_its_end() -> None:
    encoder = hpack.Encoder()
    _, table = decode_block(encoder.encode([(b"x", b"v" * 4000)]), DynamicTable(), PLENTY)

    with pytest.raises(HeaderListTooLarge):
        decode_block(b"\xbe" * 16_000, table, 16 << 10)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b"\x80", id="index 0"),
        pytest.param(b"\xbe", id="an entry that is not there"),
        pytest.param(b"\xff\xff\xff\xff\xff\xff\x7f", id="a huge integer"),
        pytest.param(b"\x40\x05abc", id="a short string"),
        pytest.param(b"\x82\x20", id="a size update behind a field"),
        pytest.param(b"\x3f\xe2\x1f", id="a table above 4096"),
        pytest.param(b"\x20\x3e\x20\x82", id="three size updates"),
        pytest.param(b"\x40\x01x\x81\xfe", id="wrong padding"),
        pytest.param(b"\x40\x01x\x84\xff\xff\xff\xff", id="end of string"),
    ],
)
def test_invalid_blocks_are_refused(block: bytes) -> None:
    with pytest.raises(HpackError):
        decode_block(block, DynamicTable(), PLENTY)
