"""YAML: what parsers take silently is refused with its line."""

from typing import Any

import pytest

from ingero_kit.yaml_documents import MAX_DEPTH, DuplicateKeyError, YamlError, load_yaml, load_yaml_documents


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: the key 'a' is in the same mapping twice, first in line 1"),
        ("a:\n  b: 1\n  'b': 2\n", "line 3: the key 'b' is in the same mapping twice, first in line 2"),
        ("- {a: [1, {c: {}}], b: 2, a: 3}", "line 1: the key 'a'"),
        ("1: a\n1: b\n", "line 2: the key '1'"),
        ("? [x]\n: {k: 1,\n   k: 2}\n", "line 3: the key 'k'"),
    ],
)
def test_a_key_twice_in_a_mapping_is_refused_with_both_lines(text: str, words: str) -> None:
    with pytest.raises(DuplicateKeyError) as error:
        load_yaml(text)

    assert str(error.value).startswith(words)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: {b: 1}\nc: {b: 1}\n", {"a": {"b": 1}, "c": {"b": 1}}),
        ("- a: 1\n- a: 1\n", [{"a": 1}, {"a": 1}]),
        ("1: number\n'1': text\n", {1: "number", "1": "text"}),
        ("a: a\nb: a\n", {"a": "a", "b": "a"}),
        (
            "x: &x {k: 1, l: 1}\ny: &y {m: 1}\nz: {<<: *x, <<: *y, k: 2}\n",
            {"x": {"k": 1, "l": 1}, "y": {"m": 1}, "z": {"k": 2, "l": 1, "m": 1}},
        ),
    ],
)
def test_what_only_resembles_a_key_given_twice_is_read(text: str, value: Any) -> None:
    assert load_yaml(text) == value


def test_several_documents_are_read_and_each_may_have_the_keys_of_the_others() -> None:
    assert load_yaml_documents("a: 1\n---\na: 2\n") == [{"a": 1}, {"a": 2}]
    with pytest.raises(DuplicateKeyError, match="line 4: the key 'a'"):
        load_yaml_documents("a: 1\n---\na: 2\na: 3\n")


@pytest.mark.parametrize("text", ["a: 1\n\tb: 2\n", b"a: 1\n\tb: 2\n"], ids=["text", "bytes"])
def test_an_error_of_syntax_has_its_line_and_no_name_of_the_parser_s(text: str | bytes) -> None:
    with pytest.raises(YamlError, match=r"^is not YAML: .* in line 2, column 1") as error:
        load_yaml(text)

    assert "string>" not in str(error.value)


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_nesting_that_is_too_deep_is_refused_with_its_line(opening: str) -> None:
    with pytest.raises(YamlError, match=f"line 1: more than {MAX_DEPTH} lists and mappings"):
        load_yaml(opening * 500)


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_nesting_of_any_depth_is_refused_with_its_line(opening: str) -> None:
    """Newer versions of PyYAML refuse a thousand flow collections by themselves."""
    with pytest.raises(YamlError, match=r"line 1: more than|maximum nesting.* in line 1"):
        load_yaml(opening * 100_000)
