"""Nothing that is held out for evaluation is trained, calibrated or tuned on."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
HELD_OUT = ROOT / "benchmarks" / "quality" / "data"
WRITTEN = ROOT / "tools" / "verifier" / "written"
USED = [WRITTEN / each for each in ("groups", "rewordings", "calibration", "development")]


def questions(folder):
    """Return the texts of all groups below a folder, by words alone."""
    lines = {
        part.removeprefix("= ").removeprefix("! ")
        for file in (*folder.rglob("*.txt"), *folder.rglob("*.tsv"))
        for line in file.read_text(encoding="utf-8").splitlines()
        for part in line.split("\t")
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
