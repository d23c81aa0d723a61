import pytest

from embeddings.settings import DEFAULT_SECONDS, QdrantSettings, qdrant_settings

URL = "http://127.0.0.1:6333"
SECRET = "k3y-of-qdrant"


@pytest.mark.parametrize("environment", [{}, {"REFRAIN_VECTORS": ""}, {"REFRAIN_VECTORS": "faiss"}])
def test_without_a_url_the_vectors_stay_here(environment):
    assert qdrant_settings(environment) is None


def test_url_wait_and_key_come_from_the_environment(tmp_path):
    assert qdrant_settings({"REFRAIN_VECTORS": URL}) == QdrantSettings(URL, None, DEFAULT_SECONDS)
    told = {"REFRAIN_VECTORS": URL, "REFRAIN_VECTORS_TIMEOUT": "0.2"}
    given = qdrant_settings({**told, "REFRAIN_QDRANT_API_KEY": SECRET})
    assert given == QdrantSettings(URL, SECRET, 0.2)
    (tmp_path / "key").write_text(SECRET + "\n")
    assert qdrant_settings({**told, "REFRAIN_QDRANT_API_KEY_FILE": str(tmp_path / "key")}) == given


def test_the_key_is_never_shown():
    settings = qdrant_settings({"REFRAIN_VECTORS": URL, "REFRAIN_QDRANT_API_KEY": SECRET})
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"REFRAIN_VECTORS_TIMEOUT": "soon"}, "seconds above 0"),
        ({"REFRAIN_VECTORS_TIMEOUT": "0"}, "seconds above 0"),
        ({"REFRAIN_VECTORS_TIMEOUT": "nan"}, "seconds above 0"),
        ({"REFRAIN_QDRANT_API_KEY": "two words"}, "one word"),
        ({"REFRAIN_QDRANT_API_KEY": "a\nb"}, "one word"),
        ({"REFRAIN_QDRANT_API_KEY": "a", "REFRAIN_QDRANT_API_KEY_FILE": "b"}, "give one"),
    ],
)
def test_what_cannot_be_meant_is_refused_without_telling_the_key(more, message):
    with pytest.raises(ValueError, match=message) as refused:
        qdrant_settings({"REFRAIN_VECTORS": URL, **more})
    assert "two words" not in str(refused.value)


def test_a_key_file_that_is_not_there_is_told():
    with pytest.raises(OSError, match="nowhere"):
        qdrant_settings({"REFRAIN_VECTORS": URL, "REFRAIN_QDRANT_API_KEY_FILE": "/nowhere"})
