"""Irregular forms of English words between semicolons, the base form first."""

from collections.abc import Mapping
from typing import Final

from embeddings.verify.lists import entries, words

_FORMS: Final = """
arise arose arisen; awake awoke awoken; beat beaten; become became; begin began begun; bend bent;
bite bit bitten; bleed bled; blow blew blown; break broke broken; bring brought; build built; burn
burnt; buy bought; catch caught; choose chose chosen; come came; cost costed; creep crept; deal
dealt; dig dug; draw drew drawn; dream dreamt; drink drank drunk; drive drove driven; eat ate
eaten; fall fell fallen; feed fed; feel felt; fight fought; find found; flee fled; fly flew flown;
forbid forbade forbidden; forget forgot forgotten; forgive forgave forgiven; freeze froze frozen;
get got gotten; give gave given; go went gone goes; do does did done; grind ground; grow grew
grown; hang hung; hear heard; hide hid hidden; hold held; keep kept; kneel knelt; know knew known;
lay laid; lead led; learn learnt; leave left; lend lent; lie lying lain; light lit; lose lost;
make made; mean meant; meet met; overcome overcame; pay paid; prove proven; ride rode ridden; ring
rang rung; rise rose risen; run ran; say said; see saw seen; seek sought; sell sold; send sent;
sew sewn; shake shook shaken; shine shone; shoot shot; show shown; shrink shrank shrunk; sing sang
sung; sink sank sunk; sit sat; sleep slept; slide slid; smell smelt; speak spoke spoken; spell
spelt; spend spent; spill spilt; spin spun; spoil spoilt; stand stood; steal stole stolen; stick
stuck; sting stung; strike struck; swear swore sworn; sweep swept; swim swam swum; swing swung;
take took taken; teach taught; tear tore torn; tell told; think thought; throw threw thrown;
understand understood; undo undid undone; wake woke woken; wear wore worn; weave wove woven; weep
wept; win won; withdraw withdrew withdrawn; write wrote written; die dying; child children kid
kids; person people persons; man men; woman women; tooth teeth; foot feet; goose geese; mouse
mice; ox oxen; knife knives; life lives; wife wives; half halves; shelf shelves; self selves;
thief thieves; wolf wolves; loaf loaves; leaf leaves; index indices; criterion criteria; datum
data; medium media; analysis analyses; crisis crises; good better best; bad worse worst; far
farther farthest further furthest; change changing changed changes; charge charging charged
charges; age aging ageing aged ages; singe singeing; hinge hinging; tie tying; use using used
uses; due dues; dye dyeing; travel travelling travelled traveller; create creating created;
install installing installed; fulfil fulfill fulfilled fulfilling; cancel cancelling cancelled
cancellation; bus buses busses; gas gases; lens lenses; quiz quizzes; canvas canvases; alias
aliases; virus viruses; series; species; always; news; perhaps; sue sued suing sues; owe owed
owing owes; add added adding adds
"""

IRREGULAR: Final[Mapping[str, str]] = {
    form: entry.split()[0] for entry in entries(_FORMS) for form in entry.split()
}
"""Form to base."""

UNINFLECTED: Final = words(
    """
    thing something anything nothing everything spring string king ring wing bring sing morning
    evening during ceiling wedding building meeting bed red need feed speed seed deed indeed bleed
    breed exceed proceed succeed shed wed hundred sacred naked wicked embed biped
    news always species series means goods customs glasses plus status bonus campus census christmas
    its his this thus yes was has us as is less unless across process access address success
    progress press express stress dress business class pass glass loss boss kiss miss mass cross
    windows aws ios sms gps dns https paris texas james charles thomas
    tennis basis analysis crisis arthritis diabetes rabies physics maths mathematics politics
    economics athletics statistics electronics logistics ethics genetics gymnastics
    """
)
