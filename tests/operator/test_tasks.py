"""Background tasks: none dies unseen, and what must go on does."""

import asyncio

import pytest

from ingero_kit.backoff import Backoff
from ingero_operator.app import ending
from ingero_operator.tasks import RestartRequired, Tasks

QUICK = Backoff(first=0.001, longest=0.002)


def test_work_without_an_end_is_begun_anew_and_counted_whether_it_fails_or_returns() -> None:
    tasks = Tasks(backoff=QUICK)
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise KeyError("odd")
        if runs == 3:
            await asyncio.Event().wait()

    async def story() -> None:
        kept = asyncio.create_task(tasks.keep("asking", work))
        async with asyncio.timeout(20):
            while runs < 3:
                await asyncio.sleep(0.001)
        assert not kept.done()
        kept.cancel()
        with pytest.raises(asyncio.CancelledError):
            await kept

    asyncio.run(story())
    assert tasks.failures == {"asking": 2}


def test_pauses_grow_while_work_fails_at_once_and_are_short_again_after_calm() -> None:
    now = [0.0]
    tries: list[int] = []

    class Seen(Backoff):
        def delay(self, attempt: int, random_value: float | None = None) -> float:
            tries.append(attempt)
            return 0.0

    async def work() -> None:
        now[0] += 1000.0 if len(tries) == 3 else 1.0
        if len(tries) == 5:
            raise RestartRequired("enough")
        raise ValueError

    with pytest.raises(RestartRequired, match="enough"):
        asyncio.run(Tasks(lambda: now[0], Seen()).keep("x", work))
    assert tries == [0, 1, 2, 0, 1]


def test_one_piece_of_work_that_fails_is_counted_and_raises_nothing() -> None:
    tasks = Tasks()

    async def work() -> None:
        raise OverflowError("odd")

    async def story() -> None:
        await tasks.start("asking a Fleet", work())

    asyncio.run(story())
    assert tasks.failures == {"asking a Fleet": 1}


def test_every_end_of_the_operator_has_its_words() -> None:
    async def quiet() -> None:
        """Come to an end."""

    async def silent() -> None:
        raise TimeoutError

    async def story() -> list[str]:
        over = [asyncio.create_task(work) for work in (quiet(), quiet(), silent())]
        await asyncio.wait(over)
        return [ending(name, task) for name, task in zip(("leader election", "kopf", "resync"), over, strict=True)]

    leading, watching, sweeping = asyncio.run(story())
    assert "Lease" in leading and "kopf" in watching and sweeping == "TimeoutError"
