"""Which curves and points of a trial are drawn. Pure."""

from quality import peers
from quality.measuring import Measured
from quality.picture import Panel
from quality.sweeps import by_meaning, curve, point

DRAWN = {
    "checklist": ("CheckList", "minimal pairs: negation, numbers, names, roles, order"),
    "gsm_plus": ("GSM-Plus", "variants of stored maths problems"),
    "clinc150": ("CLINC150", "2,000 commands of 150 intents, 6,000 others stored"),
    "banking77": ("BANKING77", "2,000 support questions of 77 intents, 5,000 others stored"),
}


def panel(measured: Measured) -> Panel:
    title, asked = DRAWN[measured.name]
    cosine, whole = by_meaning(measured.nearest), by_meaning(measured.candidates)
    default = measured.default
    return Panel(
        title,
        asked,
        curve(cosine),
        curve(whole),
        {f"{at:.2f}": point(cosine, at) for at in peers.THRESHOLDS},
        {} if default is None else {"budget 1 %": point(whole, default)},
    )
