"""Other spellings and short forms of one word, in groups between semicolons, the word itself first.

All of a group count as the same word, so only what means the same in practically every question
stands here; what does so in some questions only is among the synonyms. Several words are joined
with a hyphen.
"""

import re
from collections.abc import Mapping
from typing import Final

from embeddings.verify.lists import entries

_VARIANTS: Final = """
acknowledgment acknowledgement; advertisement advert; afterwards afterward; airplane aeroplane;
all-purpose-flour plain-flour; alligator gator; aluminum aluminium; ambiance ambience; analog
analogue; anemia anaemia; anemic anaemic; anesthesia anaesthesia; anesthetic anaesthetic;
anesthetist anaesthetist; appointment appt; approximately approx; archeologist archaeologist;
archeology archaeology; artifact artefact; avocado avo; axe ax; back-up backup; backward backwards;
baking-soda bicarb bicarbonate-of-soda sodium-bicarbonate; band-aid sticking-plaster; barbecue bbq
barbeque bar-b-q; bathrobe dressing-gown; beet beetroot; bicycle pushbike push-bike; birthday bday
b-day; burp belch; business biz; caliber calibre; catalog catalogue; celebrity celeb; cell-phone
cellphone; center centre; centimeter centimetre cm; check-out checkout; chickpea garbanzo chick-pea
garbanzo-bean; child-care childcare; chili chilli; chimpanzee chimp; co-worker coworker; condominium
condo; configuration config; cotton-candy candyfloss candy-floss; couch sofa settee; cozy cosy;
crosswalk zebra-crossing pedestrian-crossing; curb kerb; czar tsar tzar; dad daddy; data-base
database; data-set dataset; day-care daycare; defense defence; defrost thaw; delicious yummy tasty;
department dept; dialogue dialog; diaper nappy nappies; diarrhea diarrhoea; disappear vanish; donut
doughnut; dormitory dorm; eggplant aubergine; email e-mail; emails e-mails; encyclopedia
encyclopaedia; esophagus oesophagus; esthetic aesthetic; estrogen oestrogen; examination exam;
faucet water-tap; feces faeces; fetus foetus; fiber fibre; file-name filename; firefighter fireman
fire-fighter; flight-attendant cabin-attendant; follow-up followup; fridge refrigerator; fulfillment
fulfilment; government govt; gram gramme; gray grey; gynecologist gynaecologist; hair-cut haircut;
health-care healthcare; hemorrhage haemorrhage; hemorrhoid haemorrhoid; hiccup hiccough;
hippopotamus hippo; home-page homepage; husband hubby; ice-cream icecream; inches inch; influenza
flu; information info; inquiry enquiry; installment instalment; jewelry jewellery; judgment
judgement; ketchup catsup; kilogram kilogramme kg kgs; kilometer kilometre km kms; kindergarten
kindergarden; laboratory lab; ladybug ladybird; legitimate legit; leukemia leukaemia; license
licence; license-plate number-plate numberplate; likable likeable; limousine limo; liter litre;
living-room livingroom; luster lustre; mailman postman mail-carrier letter-carrier; management mgmt;
maneuver manoeuvre; marvelous marvellous; mathematics math maths; mayonnaise mayo; meager meagre;
medieval mediaeval; microphone mic; mold mould; molt moult; mom mum; monolog monologue; motorcycle
motorbike; mustache moustache; news-paper newspaper; offense offence; olympics olympic-games; omelet
omelette; orthopedic orthopaedic; pajamas pyjamas; parking-lot car-park carpark; pass-word password;
pediatric paediatric; pediatrician paediatrician; people ppl; plastic-wrap cling-film clingfilm;
pliers plyers; plow plough; pop-corn popcorn; powdered-sugar icing-sugar confectioners-sugar;
practice practise; pretense pretence; program programme; raccoon racoon; real-estate-agent
estate-agent realtor; rhinoceros rhino; saber sabre; saxophone sax; scallion spring-onion
green-onion; scepter sceptre; screen-shot screenshot; skeptic sceptic; skeptical sceptical; skillful
skilful; smart-phone smartphone; smolder smoulder; somber sombre; specter spectre; spread-sheet
spreadsheet; statistics stats; stopwatch stop-watch; stroller pushchair; sulfur sulphur; swimsuit
bathing-suit swimming-costume; synchronize synchronise sync; tablespoon tbsp tablespoonful; teaspoon
tsp; technology tech; teenager teen; television tv t.v telly; theater theatre; tic-tac-toe
noughts-and-crosses; tire tyre; tomorrow tmrw tmr; tonight tonite; tooth-brush toothbrush;
tooth-paste toothpaste; truck lorry; university univ; urinate pee; user-name username; vaporize
vaporise; vegetable veg; video vid vids; vocabulary vocab; vomit puke; web-site website; weekend
wknd; wheel-chair wheelchair; whole-wheat wholewheat wholemeal; willful wilful; windshield
windscreen; woolen woollen; yogurt yoghurt yoghourt; zipper zip-fastener; zucchini courgette
zucchinis
"""
_OUR: Final = re.compile(
    "(arm|behavi|cand|clam|col|demean|endeav|fav|flav|glam|harb|hon|hum|lab|neighb|od|parl|ranc"
    "|rig|rum|sav|splend|tum|val|vap|vig)our"
)
_ISE: Final = re.compile("(?<=.{3}i)s(?=(?:ed?|ing|er?s?|es|ation|ations)$)")
_YSE: Final = re.compile("(?<=[aeo]ly)s(?=(?:ed?|ing|ers?|es)$)")
# "Advise" is no "advize", but to write it so does no harm; to make a word of another would.
_NO_ISE: Final = frozenset({"prise", "prised", "prises"})


def american(word: str) -> str:
    """Return a lower-case word as Americans spell it, where a rule says how."""
    if "our" in word:
        return _OUR.sub(r"\1or", word)
    if "is" in word[3:]:
        return word if word in _NO_ISE else _ISE.sub("z", word)
    return _YSE.sub("z", word) if "lys" in word else word


VARIANTS: Final[Mapping[str, str]] = {
    form: entry.split()[0] for entry in entries(_VARIANTS) for form in entry.split()
}
"""Form to word."""
