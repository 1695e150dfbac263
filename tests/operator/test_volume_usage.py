"""How full a volume is: reported by Echo, shown in steps that do not flap, never a reason to stop."""

import asyncio
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero_contract.echo import VOLUME_USED
from ingero_operator import volume_usage
from ingero_operator.volume_usage import POLL_SECONDS, TOLERATED_FAILURES, VolumeUsagePoller, band, used_share
from ingero_testing.fleets import fleets
from ingero_testing.processes import echo

KEY = ("EchoStore", "ml", "events")


@pytest.mark.parametrize(
    ("share", "before", "shown"),
    [
        (0.0, None, "0%"), (0.3, None, "30%"), (0.59, None, "50%"), (1.0, None, "100%"),
        (0.61, "50%", "50%"), (0.63, "50%", "60%"), (0.49, "50%", "50%"), (0.47, "50%", "40%"), (0.5, "odd", "50%"),
    ],
)  # fmt: skip
def test_a_share_is_shown_in_steps_and_stays_at_an_edge(share: float, before: str | None, shown: str) -> None:
    assert band(share, before) == shown


@given(st.floats(0, 0.98), st.lists(st.floats(-0.009, 0.009), min_size=2, max_size=20))
def test_a_share_that_hovers_is_shown_once(share: float, noise: list[float]) -> None:
    shown = band(share, None)
    seen = []
    for step in noise:
        shown = band(min(1.0, max(0.0, share + step)), shown)
        seen.append(shown)

    assert len(set(seen)) == 1


@pytest.mark.parametrize(
    "answer",
    [None, [], {}, *({"volume_used": share} for share in (None, "1", 1.5, True, float("nan")))],
)  # fmt: skip
def test_an_answer_that_reports_no_share_shows_none(answer: object) -> None:
    assert used_share(answer) is None


def test_a_real_echo_is_asked_now_and_then_and_silence_is_borne(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_usage, "SECONDS", 20.0)  # its first answer takes long on a busy machine
    now = [0.0]
    news: list[object] = []
    gauge = VolumeUsagePoller(lambda: now[0], news.append)

    async def ask(url: str, before: str | None = None) -> str | None:
        """What is shown once the poll that this call may start has ended."""
        asked = gauge.polls
        gauge.band(KEY, url, None, before)
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            while gauge.polls != asked and gauge.running:
                await asyncio.sleep(0.01)
        return gauge.band(KEY, url, None, before)

    async def story(url: str) -> None:
        first = await ask(url)
        assert first and first.endswith("%") and news == [KEY]
        await ask(url)
        assert gauge.polls == 1
        for failures in range(1, TOLERATED_FAILURES + 1):
            now[0] += POLL_SECONDS
            shown = await ask("http://127.0.0.1:9")
            assert shown == (None if failures == TOLERATED_FAILURES else first)
        assert gauge.failed == TOLERATED_FAILURES and news == [KEY, KEY]
        gauge.forget(KEY)
        now[0] += POLL_SECONDS
        assert gauge.band(KEY, url, None, "70%") == "70%"

    with echo(tmp_path) as store:
        asyncio.run(story(store.url("api")))


def test_an_answer_that_would_fill_the_memory_is_given_up_and_a_redirect_is_not_followed() -> None:
    async def story() -> None:
        with fleets() as double, fleets() as other:
            says = double.of("ml", "events")
            url = double.template.format(namespace="ml", name="events")
            news: list[object] = []
            now = [0.0]
            gauge = VolumeUsagePoller(lambda: now[0], news.append)
            large = json.dumps({VOLUME_USED: 0.5, "x": "y" * volume_usage.MAX_ANSWER}).encode()
            for raw, status, headers in (
                (gzip.compress(large), 200, {"content-encoding": "gzip"}),
                (large, 200, {}),
                (b"[" * 10_000, 200, {}),
                (b"", 302, {"location": other.template.format(namespace="ml", name="events")}),
            ):
                says.raw, says.status, says.headers = raw, status, headers
                failed = gauge.failed
                gauge.band(KEY, url, None, None)
                async with asyncio.timeout(60):
                    while gauge.running:
                        await asyncio.sleep(0.005)
                assert gauge.failed == failed + 1 and not news and not gauge.tasks.failures
                now[0] += POLL_SECONDS
            assert other.asked == 0

    asyncio.run(story())
