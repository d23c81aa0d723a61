"""Fenced code in Markdown: where it begins and ends, strictly and as models write it."""

import pytest

from gateway.semantic.code import code_blocks


def written(text: str, *, loose: bool = False) -> list[tuple[str, str, bool]]:
    """Return each block as it stands in the text, its code, and whether it is closed."""
    return [
        (text[each.start : each.end], text[each.code : each.behind_code], each.closed)
        for each in code_blocks(text, loose=loose)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n```py\nx\n```\nb", [("```py\nx\n```", "x\n", True)]),
        ("```\r\nx\r\n``` \r\ny", [("```\r\nx\r\n``` \r", "x\r\n", True)]),
        ("   ~~~\nx\n  ~~~~\n", [("~~~\nx\n  ~~~~", "x\n", True)]),
        ("```\na\n```\n~~~\nb\n~~~", [("```\na\n```", "a\n", True), ("~~~\nb\n~~~", "b\n", True)]),
        ("```\na\n~~~\n```", [("```\na\n~~~\n```", "a\n~~~\n", True)]),
        ("````\n```\n````", [("````\n```\n````", "```\n", True)]),
        ("```\na\n    ```\n``` b", [("```\na\n    ```\n``` b", "a\n    ```\n``` b", False)]),
        ("```", [("```", "", False)]),
        ("    ```\nx\n", []),
        ("```a```b\nx", []),
        ("so ```\nx", []),
        ("`` ` ``", []),
        ("", []),
    ],
)
def test_a_block_stands_on_lines_of_its_own(text, expected):
    assert written(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("So: ```sh\nls\n``` it is", [("```sh\nls\n```", "ls\n", True)]),
        (
            "- x\n      ```\n      ls\n      ```",
            [("```\n      ls\n      ```", "      ls\n      ", True)],
        ),
        ("```\nls``` and", [("```\nls```", "ls", True)]),
        ("~~~\na\n```\nb\n~~~", [("~~~\na\n```\nb\n~~~", "a\n```\nb\n", True)]),
        ("```\nnever", [("```\nnever", "never", False)]),
        ("```a```b\nno ``` fence", []),
    ],
)
def test_models_write_blocks_behind_words_and_close_them_within_lines(text, expected):
    assert written(text, loose=True) == expected


@pytest.mark.parametrize("text", ["`" * 10**6, " " * 10**6 + "```", "```\n" + "```a\n" * 10**5])
@pytest.mark.parametrize("loose", [False, True])
def test_hostile_fences_are_read_once(text, loose):
    """Time in the square of their length would not come to an end."""
    assert len(list(code_blocks(text, loose=loose))) <= 10**5
