"""The sentence that tells people why a node is accused."""

import pytest

from ingero_fleet.tick_snapshot import verdict_sentence


@pytest.mark.parametrize(
    ("state", "evidence", "said"),
    [
        ("straggler", 9.43, "401 was expected (evidence 9.4, alarm level 6.3)."),
        ("straggler", 0.0, "401 was expected."),
        ("straggler", None, "401 was expected."),
        ("recovering", 2.0, "401 was expected. It seems to recover."),
    ],
)
def test_evidence_is_given_while_it_is_what_accuses(state: str, evidence: float | None, said: str) -> None:
    verdict = {
        "state": state, "kind": "slow", "axis": "own_history", "severity": 0.44, "value": 195.6, "expected": 401.0,
        "evidence": evidence, "level": 6.3,
    }  # fmt: skip

    sentence = verdict_sentence(verdict, 4)

    lost = "It lost 44 % of its rate against its own history, on average since its onset"
    assert sentence == f"{lost}; now 195.6 where {said}"


def test_a_node_that_was_slow_from_the_start_has_lost_nothing() -> None:
    verdict = {
        "state": "straggler", "kind": "slow_from_start", "axis": "peers", "severity": 0.3, "value": 70.0,
        "expected": 70.2, "evidence": 9.0, "level": 6.3,
    }  # fmt: skip

    sentence = verdict_sentence(verdict, 4)

    assert sentence == "It has been 30 % slower than its peers from the start (evidence 9.0, alarm level 6.3)."
