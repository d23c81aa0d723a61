"""Edits: what a request with very many texts costs grows with its size and no faster."""

from gateway.prompts.json_splice import replaced


class Counted(list):
    """A list that counts how often it is copied."""

    copies = 0

    def copy(self):
        self.copies += 1
        return list(self)


def test_what_holds_several_changed_texts_is_copied_once():
    turns = Counted({"role": "system", "content": str(number)} for number in range(4))
    body = {"model": "m", "messages": turns}
    paths = [("messages", number, "content") for number in (0, 2, 3)]
    now = replaced(body, [*((path, "new") for path in paths), (("model",), "n")])
    assert [turn["content"] for turn in now["messages"]] == ["new", "1", "new", "new"]
    assert (now["model"], turns.copies) == ("n", 1)
    assert now["messages"][1] is turns[1]
    assert body == {"model": "m", "messages": turns}
    assert [turn["content"] for turn in turns] == ["0", "1", "2", "3"]
