"""Fleet's answers as evidence: read from a real Fleet's shape, refused in words when they are none."""

import asyncio
from typing import Any

import pytest

from ingero_operator.inquiry import Inquirer, Question, read
from ingero_testing.fleets import Says, fleets

KEY = ("FleetCluster", "ml", "prod")


def answer(**change: Any) -> dict[str, Any]:
    return {**Says(stragglers={"a"}, nodes={"a", "b"}).answer(), "generated_at": "t1", **change}


def test_an_answer_becomes_evidence() -> None:
    found = read(answer(), [Says().node("b")], 100.0, None)

    assert found.evidence is not None
    assert (set(found.evidence.accused), found.evidence.well) == ({"a"}, frozenset({"b"}))
    assert found.evidence.accused["a"].active and found.threshold == 0.71


def test_where_the_detector_decides_the_evidence_is_its_severity() -> None:
    accused = {**Says(stragglers={"a"}).node("a"), "verdict": {"severity": 0.52}}

    evidence = read(answer(decided_by="verdict", stragglers=[accused]), [], 1.0, None).evidence

    assert evidence is not None
    item = evidence.accused["a"]
    assert (item.severity, item.score, item.threshold) == (0.52, None, None)


def test_statistics_that_repeat_themselves_grow_old() -> None:
    first = read(answer(), [], 100.0, None).evidence
    second = read(answer(), [], 200.0, first).evidence
    third = read(answer(generated_at="t2"), [], 300.0, second).evidence

    assert second is not None and third is not None
    assert (second.received, third.received) == (100.0, 300.0)


def test_an_accused_node_is_never_well() -> None:
    contradiction = {"node_id": "a", "state": "active", "straggler": False}

    evidence = read(answer(), [contradiction], 1.0, None).evidence

    assert evidence is not None and evidence.well == frozenset()


def cost(per_hour: float, waiting: float, unpriced: int = 0) -> dict[str, Any]:
    return {
        "currency": "USD", "cost_per_hour": per_hour, "waiting_per_hour": waiting, "gpus_without_rate": unpriced
    }  # fmt: skip


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (None, None),
        (cost(0, 0), None),
        (cost(98.321, 0), {"currency": "USD", "perHour": "98.32", "waitingPerHour": "0.00"}),
        (cost(98.321, 0.0449), {"currency": "USD", "perHour": "98.32", "waitingPerHour": "0.04"}),
        (cost(98.321, 4.1499), {"currency": "USD", "perHour": "98.32", "waitingPerHour": "4.1"}),
        (cost(98.321, 9.96), {"currency": "USD", "perHour": "98.32", "waitingPerHour": "10"}),
        (cost(4000, 1234.5, 8),
         {"currency": "USD", "perHour": "4000.00", "waitingPerHour": "1200", "gpusWithoutRate": 8}),
        (cost(0, 0, 16), {"gpusWithoutRate": 16}),
        ({}, None),
        ([1], None),
        (cost(float("nan"), 0), None),
        (cost(98, float("inf")), None),
        (cost(1, 0) | {"cost_per_hour": "much"}, None),
    ],
)  # fmt: skip
def test_what_is_shown_of_the_cost_moves_in_steps(told: Any, shown: Any) -> None:
    found = read(answer(cost=told), [], 1.0, None)

    assert found.cost == shown and found.evidence


def test_a_new_price_is_news() -> None:
    before, same, after = (read(answer(cost=cost(98.3, waiting)), [], 1.0, None) for waiting in (0, 0.001, 4))

    assert before.shown() == same.shown() != after.shown()


@pytest.mark.parametrize(
    "broken",
    [{}, {"generated_at": "t"}, answer(stragglers=None), answer(stragglers=[{"node_id": "a"}]),
     answer(interval_seconds=None), answer(stragglers=["a"])],
)  # fmt: skip
def test_what_is_no_answer_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read(broken, [], 1.0, None)


def test_one_question_that_goes_astray_is_not_news_and_three_are() -> None:
    async def story() -> list[str]:
        heard: list[str] = []
        with fleets() as double:
            says = double.of("ml", "prod")
            says.interval = 60.0
            now = [0.0]

            def news(_: object) -> None:
                found = inquirer.answer(KEY)
                heard.append(found.failure if found else "")

            def clock() -> float:
                now[0] += 0.001
                return now[0] + asyncio.get_running_loop().time()

            inquirer = Inquirer(clock, 0.01, 1000.0, news)
            inquirer.watch(KEY, Question(url=double.template.format(namespace="ml", name="prod"), cluster="c"))
            task = asyncio.create_task(inquirer.run())
            async with asyncio.timeout(20):
                while not heard:
                    await asyncio.sleep(0.005)
                says.status = 500
                while len(heard) < 2:
                    await asyncio.sleep(0.005)
            failures = inquirer.failed
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert failures >= 3
        return heard

    first, second = asyncio.run(story())[:2]
    assert first == "" and "500" in second
