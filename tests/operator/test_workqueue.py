"""The queue of dirty keys."""

import asyncio
from collections import Counter

from ingero_kit.backoff import Backoff
from ingero_operator.workqueue import HINT_SECONDS, WorkQueue


async def worked(queue: WorkQueue[str], worker, done, workers: int = 2) -> None:  # type: ignore[no-untyped-def]
    task = asyncio.create_task(queue.run(worker, workers))
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_key_in_line_is_done_once_and_a_dirty_running_one_once_more() -> None:
    async def story() -> Counter[str]:
        queue: WorkQueue[str] = WorkQueue()
        seen: Counter[str] = Counter()
        running: set[str] = set()

        async def worker(key: str) -> None:
            assert key not in running, "one run a key at a time"
            running.add(key)
            seen[key] += 1
            if seen[key] == 1:
                for _ in range(5):
                    queue.add(key)
            await asyncio.sleep(0)
            running.discard(key)

        for _ in range(3):
            queue.add("a")
            queue.add("b")
        await worked(queue, worker, lambda: queue.done == 4 and len(queue) == 0)
        return seen

    assert asyncio.run(story()) == {"a": 2, "b": 2}


def test_failures_come_again_later_and_success_forgets_them() -> None:
    async def story() -> tuple[int, dict[str, int]]:
        queue: WorkQueue[str] = WorkQueue(Backoff(first=0.001, longest=0.01, jitter=0.0))
        tries = 0

        async def worker(_: str) -> None:
            nonlocal tries
            tries += 1
            if tries < 4:
                raise ValueError("not yet")

        queue.add("a")
        await worked(queue, worker, lambda: tries == 4 and len(queue) == 0)
        return tries, queue.failures

    assert asyncio.run(story()) == (4, {})


def test_a_key_that_waits_for_its_delay_is_not_in_line() -> None:
    async def story() -> list[int]:
        queue: WorkQueue[str] = WorkQueue()
        lengths = []

        async def worker(_: str) -> float:
            lengths.append(len(queue))
            return 3600.0

        queue.add("a")
        queue.add("b", 3600)
        lengths.append(len(queue))
        await worked(queue, worker, lambda: queue.done == 1)
        return [*lengths, len(queue), len(queue.waiting.due)]

    assert asyncio.run(story()) == [1, 1, 0, 2]


def test_an_earlier_wish_wins() -> None:
    async def story() -> int:
        queue: WorkQueue[str] = WorkQueue()
        count = 0

        async def worker(_: str) -> None:
            nonlocal count
            count += 1

        queue.add("a", 3600)
        queue.add("a", 0)
        await worked(queue, worker, lambda: count == 1)
        return count

    assert asyncio.run(story()) == 1


def test_news_that_come_again_and_again_do_not_shorten_the_pause_of_a_key_that_failed() -> None:
    async def story() -> tuple[int, float, int]:
        queue: WorkQueue[str] = WorkQueue(Backoff(first=3600, longest=3600, jitter=0.0))
        tries = 0

        async def worker(key: str) -> None:
            nonlocal tries
            tries += 1
            if key == "a":
                queue.hint(key)
                raise ValueError("the API server refuses")

        queue.hint("a")
        queue.hint("b")
        await worked(queue, worker, lambda: tries == 2)
        for _ in range(100):
            queue.hint("a")
        pause = queue.waiting.due["a"][0] - asyncio.get_running_loop().time()
        queue.add("a")  # somebody changed it: that is worth a try at once
        await worked(queue, worker, lambda: tries == 3)
        return tries, pause, queue.failures["a"]

    tries, pause, failures = asyncio.run(story())
    assert (tries, failures) == (3, 2) and HINT_SECONDS / 2 < pause <= HINT_SECONDS
