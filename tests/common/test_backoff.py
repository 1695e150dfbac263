import pytest

from ingero_kit.backoff import Backoff, parse_retry_after


def test_delays_double_up_to_the_longest() -> None:
    backoff = Backoff(first=1, longest=5, jitter=0)

    assert [backoff.delay(attempt) for attempt in range(5)] == [1, 2, 4, 5, 5]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3", 3.0),
        ("1e99", 3600.0),
        ("nan", None),
        ("-5", 0.0),
        ("soon", None),
        ("", None),
        (None, None),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0),
    ],
)
def test_retry_after_is_read_as_the_standard_says(text: str | None, seconds: float | None) -> None:
    assert parse_retry_after(text, now=10.0) == seconds
