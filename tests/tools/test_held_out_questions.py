"""Nothing that is held out for evaluation is trained, calibrated or tuned on."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
HELD_OUT = ROOT / "benchmarks" / "quality" / "data"
USED = [ROOT / "tools" / "verifier" / each for each in ("groups", "calibration", "development")]


def questions(folder):
    """Return the texts of all groups below a folder, by words alone."""
    lines = {
        line.removeprefix("= ").removeprefix("! ")
        for file in folder.rglob("*.txt")
        for line in file.read_text(encoding="utf-8").splitlines()
    }
    texts = {" ".join(line.casefold().strip(" ?.!").split()) for line in lines}
    return texts - {""}


def test_no_question_that_is_held_out_is_trained_calibrated_or_tuned_on():
    held_out = questions(HELD_OUT)
    assert len(held_out) > 3000
    for folder in USED:
        used = questions(folder)
        assert used, folder
        assert held_out & used == set(), folder
