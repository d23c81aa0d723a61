"""Words that hold a sentence together, and words that may be added without another answer."""

from collections.abc import Mapping
from typing import Final

from embeddings.verify.lists import words

NEGATIONS: Final = words(
    "not no never none nobody nothing nowhere neither nor without cannot hardly barely scarcely "
    "unable non"
)

AUXILIARIES: Final = words(
    "am is are was were be been being do does did done doing have has had having will would shall "
    "should can could may might must ought"
)

FUNCTION: Final = (
    NEGATIONS
    | AUXILIARIES
    | words(
        """
    a an the this that these those there here it its itself i me my mine myself we us our ours
    ourselves you your yours yourself yourselves he him his himself she her hers herself they
    them their theirs themselves ones one's oneself who whom whose which what when where why
    how whatever whichever whoever of to in on at by for from with within into onto upon about
    across against along among around as between beyond but despite during except if in like
    near off or out over per since so than then though through throughout till toward towards
    under unless until up via while and because although before after above below behind beside
    besides whether also too any some such else both either each other another let get got
    getting s t re ve ll d m vs versus etc eg ie
    """
    )
)

HARMLESS: Final = words(
    """
    please kindly thanks thank hi hello hey hiya greetings sorry excuse dear cheers pls plz thx
    really actually currently just exactly truly indeed basically simply literally honestly
    possible possibly best good proper right properly correctly rightly easily quickly easy
    quick simple simply successfully effectively generally usually normally typically
    specifically particularly certain particular own again still already even ever now today
    nowadays anyway perhaps maybe well okay ok yes yeah want wish like need try trying attempt
    help hope look looking know tell explain describe show give say see find let ask question
    wonder wondering advise guide recommend suggest inform idea clue understand learn figure
    curious interested going go goes gone able manage supposed happen thing things stuff
    something anything someone anyone somebody anybody do make makes kind sort bit lot answer
    information info details detail matter case overall altogether quite rather very pretty
    fairly somewhat actual mate guys folks everyone everybody man dude bro sir madam team sure
    exact would could got gotten meant roughly approximately approx
    """
)
"""A text may have one of these more, or instead of another, without asking for something else."""

ADDABLE: Final = words(
    """
    way ways method methods step steps process procedure instruction instructions manner
    tutorial tip tips means approach technique option options people person using use come type
    entire whole full total new name number amount time date day place location difference
    differ differs distinguish distinct distinction contrast  count mean meaning
    meanings definition exist exists belong put set setting moment current presently list
    purpose called considered considering deal regarding concerning word words phrase term
    concept explanation summary provide fact obtain offer offered attention ahead aside mention
    city country human animal language button correct distance mileage expect order press local
    check located situated
    """
)
"""Where the other text has nothing that it lacks, a text may have one of these more."""

MEASURES: Final[Mapping[str, frozenset[str]]] = {
    "how": words(
        """
    much many long far old often tall big high deep heavy wide fast hot cold soon late early
    large
    """
    ),
    "many": words("seconds minutes hours days weeks months years miles kilometers kilometres km"),
    "what": words("time day date year month hour"),
    "which": words("day year month"),
}
"""Behind the first word these belong to the question."""

HE: Final = words("he him his himself")
SHE: Final = words("she her hers herself")
