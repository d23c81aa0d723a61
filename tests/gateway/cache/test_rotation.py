from gateway.cache.rotation import Rotation


def test_each_key_takes_its_turns():
    rotation = Rotation()
    assert [rotation.draw(b"a"), rotation.draw(b"b"), rotation.draw(b"a")] == [0, 0, 1]


def test_of_too_many_keys_the_one_asked_longest_ago_begins_anew():
    rotation = Rotation(most=2)
    for key in (b"a", b"b", b"a", b"c"):
        rotation.draw(key)
    assert rotation.draw(b"a") == 2
    assert rotation.draw(b"b") == 0
