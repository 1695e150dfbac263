"""Ending: every task ends, also one whose cancellation a library swallowed once."""

import asyncio

from ingero_operator.app import end


def test_a_task_that_misses_its_cancellation_is_cancelled_again() -> None:
    async def uncancellable(times: int) -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                times -= 1
                if times < 0:
                    raise

    async def run() -> list[bool]:
        tasks = [asyncio.create_task(uncancellable(times)) for times in (0, 1, 3)]
        await asyncio.sleep(0)
        await asyncio.wait_for(end(tasks), 20)
        return [task.cancelled() for task in tasks]

    assert asyncio.run(run()) == [True, True, True]


def test_nothing_to_end_is_fine() -> None:
    asyncio.run(end([]))
