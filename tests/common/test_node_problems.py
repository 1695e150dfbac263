"""The lines of a termination message that say why a node is not traced."""

from ingero_contract.node_problems import MAX_SENTENCE, TraceProblem, format_problems, parse_problems


def test_problems_come_back_as_they_were_written() -> None:
    problems = {TraceProblem.NO_BTF: "no types; mount /sys", TraceProblem.PRIVILEGES_REFUSED: "CAP_BPF: add BPF"}

    assert parse_problems(format_problems(problems)) == problems
    assert format_problems({}) == ""


def test_all_reasons_fit_into_one_termination_message() -> None:
    text = format_problems(dict.fromkeys(TraceProblem, "x\n" * 5000))

    assert len(text.encode()) <= 4096
    assert {len(sentence) for sentence in parse_problems(text).values()} == {MAX_SENTENCE}


def test_other_lines_of_a_termination_message_are_ignored() -> None:
    assert parse_problems("Killed\nNoSuchReason: x\nNoBTF\nNoBTF: \n: \nNoNVML: load the driver") == {
        TraceProblem.NO_NVML: "load the driver"
    }
