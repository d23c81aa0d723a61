"""The word lists of eligibility, in the form of ``tokenize_question``.

Law: a list holds what its name says and nothing that serves one data set; no list decides alone.
"""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _pairs(text: str) -> frozenset[tuple[str, str]]:
    """Read pairs of words, separated by commas."""
    pairs = (pair.split() for pair in text.split(","))
    return frozenset((first, second) for first, second in pairs)


# --- Language ---

ENGLISH = _words(
    "a about after again all also am an and any anyone anything are aren as at be because been"
    " before being best better between both but by can cannot cant could couldn did didn do does"
    " doesn doing don done dont during each either else ever every for from get give go going got"
    " had has have haven having he her here him his how i if im in into is isn it its just know let"
    " like ll long make many may me mean means mine more most much must my need never no nor non"
    " not of off on one only or other our out over please pls re s same shall she should shouldn"
    " show so some someone something still such take tell than that the their them then there these"
    " they thing this those through to too under until up us use using want was wasn way we were"
    " what whats when where which while who whom whos whose why will with within without won work"
    " would wouldn yes you your yours hows wheres"
)

_CLASHING = _words(
    "al are as bin bu co com come dai dan das de del den dei der di die do dos du e el em en er es"
    " est este et fait fin fur ha han hat hay ho il in io ja je kan la las lo los mas mat me med mi"
    " mia min mis mot my na nas ne no nos och og on os ou pa par pas per pro sa sao se sei ses si"
    " sin so son sta sto su sui sur tak ten todo tot tra tu un una uno us van var ve vi von vos was"
    " wat will wo ya yo zu also"
)
"""Words of the languages below that stand in English texts too: in names, or as English words."""
_ALL_FOREIGN = _words(
    # German.
    "aber auf aus bei bin bist bitte damit dann das dass dein deine dem den der des dich dir doch"
    " durch eine einem einen einer eines fur gibt geht habe haben hast hier ich ihr ihre ist ja"
    " kann kannst kein keine konnen mein meine meinem meinen meiner mich mir mit muss nach nicht"
    " noch nur oder ohne schon sehr sich sie sind soll und uns unser von vom wann warum weil welche"
    " welcher welches wenn wer werden wie wieso wird wo wohin zu zum zur zwischen"
    # French.
    " alors aussi avec avez avoir aux bonjour cela ces cest cette chez combien dans depuis dois"
    " elle et etre faire faut ils je jai lequel leur mais merci mes moi mon mot ne nest nos notre"
    " nous ou oublie par parce peut peux pourquoi puis quand quel quelle quelles quels quest que"
    " qui quoi sans sont ses sil suis sur tres une vos votre vous"
    # Spanish.
    " al algo aqui como cual cuales cuando cuanto cuanta cuantos cuesta del desde donde ella ellos"
    " entre esta estan este estos estoy fue gracias ha hacer hacia hasta hay hola la las los mas mi"
    " mis muy necesito nosotros nuestra nuestro para pero por porque puedo puede que quien quiero"
    " sin sobre soy su sus tambien tengo tiene todo una unas unos usted ustedes ya yo"
    # Italian.
    " anche che chi ciao ciascuno cosa cosi dai dal dalla degli dei del della delle di dove e gli"
    " grazie ho il io lo loro mia mio molto nel nella nostro ogni perche piu posso puo quale quali"
    " quando quanto quanti questa questo sei sia siamo sono sta sto sul sulla tra tuo tutti un uno"
    " vorrei voglio"
    # Portuguese.
    " ao aos aqui como com da das de dele dela do dos ela ele eles em entao essa esse esta este eu"
    " faz fazer foi isso mais mas meu meus minha muito na nao nas nos nossa obrigado onde ou para"
    " pela pelo porque posso pra preciso qual quais quando quanto que quem quero sao se sem ser sua"
    " seu tem tenho uma voce"
    # Dutch.
    " aan als bij dat de deze dit een geen goed hebben heb hebt het hij hoe ik ben jij je kan maar"
    " mijn moet naar niet nog ook omdat onze ons tot uit van veel voor waar waarom wat wanneer"
    " welke wil wordt zijn zij zonder"
    # Nordic languages.
    " af av den det du eller en er ett fra har hej hur hvad hvor hvordan hvorfor ikke inte jag jeg"
    " kan med min mitt och og paa pa som skal ska till til vad var varfor vil vill"
    # Slavic languages, Turkish, Indonesian.
    " aku bagaimana bir bu cara co czy dan dla gdzie icin ile ini itu jak jaki je kde mam mi mogu"
    " moje nasil ne nie odkud jest saya sa sie si su tak ten tidak untuk ve wat yang zajak zal"
    # What short texts in these languages are often about.
    " bestellung danke guten karte konto kreditkarte kundigen passwort rechnung vergessen bonsoir"
    " carte commande compte facture passe cuenta contrasena factura pedido tarjeta buongiorno carta"
    " ordine cartao conta senha bestelling rekening wachtwoord"
)
FOREIGN = _ALL_FOREIGN - _CLASHING - ENGLISH
PERHAPS_FOREIGN = (_ALL_FOREIGN & _CLASHING) - ENGLISH

# --- The time of the question ---

MOMENTS = _words(
    "today todays tonight tonights tomorrow tomorrows yesterday yesterdays nowadays rn tmrw"
)
PERIODS = _words(
    "week weeks weekend month months year years quarter quarters season semester day days hour"
    " hours minute minutes night morning afternoon evening spring summer autumn fall winter monday"
    " tuesday wednesday thursday friday saturday sunday january february march april may june july"
    " august september october november december christmas century decade"
)
SPANS = PERIODS - _words("day hour minute century decade may march")
"""What "last" and "next" in front of it place by today: not "the next day" of a tale."""
HELD = _words(
    "commit commits stash push branch change changes edit edits row rows record records entry"
    " entries file files message messages email element item line lines value transaction"
    " transactions charge charges payment payments order orders purchase purchases bill bills"
    " statement statements invoice invoices transfer transfers paycheck deposit withdrawal"
)
"""What the asker has at hand: the latest of it is no news of the world."""
CURRENT = _words(
    "president prime minister ceo king queen pope leader head champion champions holder mayor"
    " governor chancellor government price prices rate rates exchange interest inflation weather"
    " temperature temp time date day year month season humidity traffic wait waiting version"
    " release score scores standings ranking rankings news events event affairs population status"
    " situation air aqi wind uv mortgage gas stock market value trend trends coach captain record"
    " owner"
)
RECENT = _words("news events event developments studies findings results elections earthquakes")
OF_ITS_TIME = _pairs(
    "time it, date it, day it, year it, month it, live score, live scores, breaking news,"
    " who winning, match score, game score, score game, flight status, open now, it raining,"
    " it snowing, it sunny, it outside, air quality, trending now, what happening, how traffic,"
    " traffic like"
)
OF_THE_MARKET = _pairs(
    "stock price, stock prices, share price, exchange rate, exchange rates, bitcoin price,"
    " gold price, oil price, gas price, gas prices, ethereum price, price bitcoin, price gold"
)
SPELLS = _words("cold hot wet bad dry warm winter summer severe all")
"""Before "weather" where it is a circumstance."""
CLOCK = _pairs("what time, what date, what day, current time, current date")
OFFICES = _words(
    "president ceo king queen pope mayor governor chancellor champion richest leader coach captain"
    " minister"
)
ABOUT_WEATHER = _words(
    "affect affects cause causes climate difference define meaning mean vs versus stripping under"
    " predict predicted station stations revenue sales demand budget cash model models python excel"
    " tableau why does"
)
ABOUT_NEWS = _words("fake anchor write article agency good bad break broke sources feed letter")
OWN = _words("i my me we our us im mine")
BEFORE_NOW = _words("from until till by before than even just up and what")
RELATIVE = _words("this last past next previous coming")
NUMBERS = _words(
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
    " hundred thousand million half quarter third fifth twice double triple dozen few couple"
)
ASKS_TIME = (
    MOMENTS
    | RELATIVE
    | _words(
        "now currently current recent who until till latest newest weather forecast forecasts news"
        " headlines"
    )
    | frozenset(word for pair in OF_ITS_TIME | OF_THE_MARKET | CLOCK for word in pair)
)
"""A text without any of these does not ask for anything of its time."""

# --- Earlier turns ---

VAGUE = _words(
    "and but or so then yes no yep nope yeah nah ok okay sure why how what when where who which"
    " more less again continue next previous else please thanks thank you it this that these those"
    " them they he she other go on stop wait help explain elaborate really right wrong maybe"
    " perhaps do tell me show details detail example examples shorter longer repeat same also now"
    " fine good great cool nice correct true false huh hmm um well s is the an of for about to with"
    " in at not too very i see got both either neither all none some any another different better"
    " worse simpler clearer briefly"
)
LEANING_OPENINGS = _words(
    "and but or so then also plus else instead yes no yep nope yeah nah ok okay sure thanks thank"
    " great cool nice perfect right wrong exactly correct again more less another continue"
    " elaborate shorter longer simpler repeat it this that these those them they he she its his her"
    " their otherwise however because besides same similarly likewise still next"
)
LEANING_PAIRS = _pairs(
    "what about, how about, what else, who else, where else, how else, when else, anything else,"
    " anyone else, something else, what other, which other, any other, go on, go ahead, keep going,"
    " tell more, same for, same with, same thing, you said, you mentioned, you wrote, you told,"
    " you gave, you suggested, your answer, your last, your previous, your first, your example,"
    " first one, second one, third one, last one, other one, other ones, which one, which ones,"
    " good one, better one, cheaper one, new one, same one, do so, did so, as above,"
    " mentioned above, mentioned before, said before, one more, some more, even more,"
    " more examples, more detail, more details, in short, shorter please, why not, then what,"
    " if so, if not, to both, both of"
)
LEANING_ENDS = _words("instead otherwise then too earlier above before again though either")
LEANING_ANYWHERE = _words("latter aforementioned")
PRONOUNS = _words(
    "he she him her his hers they them their theirs it its this that these those himself herself"
    " itself themselves there"
)
AFTER_EMPTY_IT = _words(
    "possible safe ok okay legal illegal true normal necessary worth better best bad good important"
    " easy hard difficult allowed wrong right rude healthy cheaper faster take takes cost costs"
    " common fair wise smart smarter cold hot dark late raining snowing mean that dangerous polite"
    " impossible unusual sensible advisable acceptable useful weird odd strange quiet"
)
"""Close after "it" where it stands for what follows them: "is it safe to", not "is it safe"."""
BEING = _words("is are was were be been s will would can has have isn aren there")
INTRODUCING = _words("a an my our someone somebody people")
"""Before a noun that the text itself brings up."""
BEFORE_CLAUSE = _words("so know think say said mean means sure someone something everything one")
"""Before "that" where it opens a clause."""
ASKING = _words(
    "what who whom whose where when which why how is are was were do does did can could should"
    " would will may might has have had am"
)
PREPOSITIONS = _words(
    "in on at for with without from to as like about by under over before after during between into"
    " of per via only just not maybe if unless except"
)

# --- Chance and variety ---

POLITE = _words(
    "please can could would will you just hey hi hello now ok okay so and i d like want"
)
VARYING_OPENINGS = _words("another random surprise again")
BY_CHANCE = _pairs(
    "surprise me, surprise us, flip coin, toss coin, coin flip, coin toss, roll dice, roll die,"
    " dice roll, heads tails, pick number, choose number, pick one, you choose, you pick,"
    " your choice, random number, random numbers, random word, random words, random fact,"
    " random joke, random name, random names, random quote, random colour, random color,"
    " random question, random letter, random city, random country, random song, random movie"
)
GIVING = _words(
    "give tell show suggest generate write pick choose name say make recommend create share read"
    " offer produce list try let need one some any something"
)
VARIED = _pairs(
    "another joke, another one, another story, another fact, another example, another idea,"
    " another suggestion, another poem, another riddle, another quote, another recipe,"
    " another question, another version, another name, another try, another go, one more,"
    " another random, another way, something different, something else, something new,"
    " different one, different joke, different story, different answer, different example,"
    " different version, different idea, new joke, new one, new idea, new ideas, new story,"
    " other ideas, other suggestions, other examples, more ideas, more suggestions, more examples,"
    " more jokes, more options, try again, once more"
)

ASKS_VARIETY = VARYING_OPENINGS | frozenset(word for pair in BY_CHANCE | VARIED for word in pair)

# --- Words to the assistant ---

DISREGARD = _words("ignore disregard override forget bypass skip overwrite")
DISREGARDED = _words(
    "above instruction instructions previous prior rules prompt prompts everything context"
    " guidelines earlier preceding system safety guardrails restrictions policies"
)
MACHINERY = _pairs(
    "system prompt, your prompt, your instructions, your guidelines, semantic cache, cached answer,"
    " cached response, cached answers, cache key, similarity score, similarity threshold,"
    " developer mode, jailbreak mode, repeat after, always answer, always reply, always respond,"
    " only answer, only reply, only respond, answer only, reply only, respond only, must answer,"
    " must say, must reply, must respond, should answer, answer exactly, reply exactly,"
    " say exactly, output only, print only, new instructions, these instructions, end instructions,"
    " this verifier, stored question"
)

ORDERS = _words("say answer reply respond claim pretend print output repeat insist")
"""Of a sentence beside the question: how the answer is to be."""

# --- A text to work on ---

WORKING = _words(
    "summarise summarize translate proofread rewrite rephrase paraphrase correct edit improve"
    " classify extract analyse analyze tldr shorten simplify polish reword"
)
WORKED_ON = _pairs(
    "following text, following email, following article, following passage, following paragraph,"
    " following sentence, following sentences, following message, following code, following list,"
    " following review, following table, this text, this email, this article, this passage,"
    " this paragraph, this sentence, this message, this review, this letter, this essay,"
    " text below, email below, article below, passage below, the following, below text"
)
