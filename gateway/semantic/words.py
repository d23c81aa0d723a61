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
    "ab ada adresse ai al ale alla alle alles ama anno ante apa att auf aus aux az bara beaucoup"
    " ben bent bin bis bitte bonjour bu byl ca carta ce che chi ci ciao co col com come commande"
    " compte con conta contra cosa cosi costa cu cum da dag dai dal dan danke das de dei del dela"
    " dell dem den der des dessa di die dig din dir dos dove du dura e ed el ella em en er era es"
    " est esta estar este et eu fa fait fi fica fick finns fra fur gar gracias gratis grazie guten"
    " ha hace hai hallo han hat hay hem hen het ho hoe hola hos hun ii il ini ins io isi ja jag"
    " jai jak jake je jen jest kam kan ke ki kim kun la lang las le lei les lo loro los lui ma mag"
    " mai mas med meg meme merci met meu mi mia mina mis mit moc mon mot muj na nada nam nas ne"
    " ned nell nest ni noe noi nos nova novo nu num nun ny obrigado och og ogni ole om ona onde"
    " onko ons op opp ordine os ou pa par para pas pe pero po poi pois por pour prima pro quand"
    " que qui receta sa sam sans sao se sei sem ser sera ses si sia sin sina sobre son sono sou"
    " soy sta sto su sua sub sui suis sur ta tai tak tal tam tan te ten ter tid til till todo toe"
    " tom ton tot tous tra tres trop trova tu uber uit um uma un una uno unter ur usar uz va vad"
    " vain van var vara ve vem vi vid vil vill ville volt von vor vore vos vous wat wel wie wil"
    " wilt wo ya yo za zit zu"
)
"""Words of the languages below that stand in English texts too: in names, or as English words."""
_ALL_FOREIGN = _words(
    # German.
    "ab aber alle allem allen aller alles als am an andern ans auch auf aus bei beim bekomme"
    " bekommen bezahlen bin bis bist bitte brauche brauchen braucht da dafur damit dann daran"
    " darauf darf darum das dass dazu dein deine dem den denn der des dessen dich die diese diesem"
    " diesen dieser dieses dir doch durch durfen eigentlich ein eine einem einen einer eines er es"
    " etwas euch euer eure funktioniert fur gab ganz gegen gehen geht genau gerade gibt guten habe"
    " haben hast hat hatte hatten hier ich ihm ihn ihnen ihr ihre ihrem ihren im immer in ins ist"
    " ja jede jeden jeder jedes jetzt kann kannst kein keine keinen konnen konnte konnten kosten"
    " kostet lange lauft machen macht mehr mein meine meinem meinen meiner mich mir mit mochte"
    " muss mussen nach neue neuen nicht nichts noch nun nur ob oder ohne schon sehr sein seine"
    " seinen seit sich sie sind so soll sollte sollten sonst statt trotz uber uhr um und uns unser"
    " unter viel viele vom von vor wann waren warum was wegen weil welche welchem welchen welcher"
    " welches wem wen wenn wer werde werden wie wieder wieso wieviel wieviele wird wo woher wohin"
    " wurde wurden zu zum zur zwei zwischen"
    # French.
    " a ai alors apres as au aucun aucune aujourd aussi autre autres aux avais avait avant avec"
    " avez avoir avons beaucoup bien bonjour ca ce cela celle celui ces cest cet cette changer"
    " chaque chez combien comme cree dans de depuis dois doit donc dont du elle elles en encore"
    " entre est et etaient etait ete etes etre eu eux faire fait faites faudrait faut fautil"
    " fonctionne il ils jai je jusqu la laquelle le lequel les leur leurs lors lui ma mais marche"
    " me meme merci mes moi moins mon ne nest ni non nos notre nous on ont ou oublie oui par parce"
    " pas pendant peu peut peuton peux plusieurs pour pourquoi pourrais pouvez puis puisje qu"
    " quand que quel quelle quelles quels quest qui quoi s sa sans se sera ses si signifie sil"
    " soit son sont sous suis sur ta te tes toi ton toujours tous tout toute toutes tres trop"
    " trouver tu un une utiliser va vais vers veut veux voici voila vos votre voudrais vous"
    # Spanish.
    " al algo algun alguna ante antes aquel aqui aun aunque cada casi como con cosas cual cuales"
    " cualquier cuando cuanta cuantas cuanto cuantos cuesta dan debe deberia debo del desde"
    " despues dicen donde dos durante e el ella ellas ellos era eran eres esa ese eso esta estaba"
    " estan estas este estos estoy fue fueron funciona gracias ha habia hace hacen hacer hacia"
    " hago han hasta hay he hola hubo las llama llamo lo los mas mejor mi mis mucho muchos muy"
    " nada necesita necesito ningun no nosotros nuestra nuestro os otra otro otros para perdi pero"
    " poco podemos podria por porque pueda puede pueden puedo pues quien quienes quiere quiero"
    " sabe segun ser siempre significa sin sirve sobre soy su sus tal tambien tan tanto tarda"
    " tener tengo tiene tienen tipo toda todas todo todos tus una unas uno unos usar usted ustedes"
    " van voy ya yo"
    # Italian.
    " abbiamo agli alcuni alla allo altra altri altro anche ancora anno avere aveva bisogna che"
    " chi chiama ci ciao ciascuno cio coi col come cosa cose cosi costa dagli dai dal dall dalla"
    " dalle dallo degli dei dell della delle dello dentro deve devo di dire dopo dove dovrei dura"
    " ecco ed erano essere fa faccio fai fanno fatto fino fra funziona fuori gia gli grazie hai"
    " hanno ho i io lei li loro mai meglio mentre mia mie miei mio molti molto negli nei nel nell"
    " nella nelle nello nessun nessuno niente noi nostra nostro nulla ogni oppure ora perche piu"
    " poi possiamo posso possono prima puo puoi qual qualche quale quali quando quant quanta"
    " quante quanti quanto quella quelli quello questa queste questi questo scade sei senza sia"
    " siamo siete sono sopra sotto sta stai stanno stata stato sto sua succede sui sul sull sulla"
    " sulle suo suoi tra troppo trova trovare trovo tua tuo tuoi tutta tutte tutti tutto usare vai"
    " vengo vengono verso vi vicino viene voglio vorrei vostro vuoi vuole"
    # Portuguese.
    " ainda algum alguma ao aos apos aquele com consegue consigo contra custa dao dela dele depois"
    " dessa desse desta deste do ela elas ele eles em entao essa essas esse esses estao estar"
    " estou faco fala falar faz fazer fica ficar foi foram isso isto lhe melhor mesmo meu meus"
    " minha minhas muita muito muitos na nao nas nem nenhum nossa nosso nova novo num numa"
    " obrigado onde outra outro pela pelas pelo pelos pode podem poder pois pra precisa preciso"
    " primeiro quais qualquer quantas quantos quem quer quero sao seja sem sempre seu seus sou"
    " suas tambem tao tem tenho ter teu tudo uma umas vao vez voce voces vou"
    # Dutch.
    " aan af alleen altijd ander andere ben bent beste betalen betekent bij daar dat deze dit doe"
    " doen doet dus duurt echt een eens gaan gaat gebruik gebruiken geeft geen goed graag haar had"
    " hallo heb hebben hebt heeft heet hem hen het hij hoe hoelang hoeveel hun ik is jij jou jouw"
    " jullie kan kom komt kost krijg krijgen kun kunnen kunt lang maak maakt maar mag maken mee"
    " meer meest met mij mijn moest moet moeten mogen naar niet niets nieuw nieuwe nodig nog nu of"
    " om omdat onder ons onze ook op over sinds staat tegen tijdens toe tot tussen uit uw vaak"
    " vanaf vanuit veel vind vinden voor waar waarmee waarom waarop waarvoor wanneer want wat we"
    " wel welk welke werd werkt wij wil wilt worden wordt zal zelf zich zie zien zij zijn zit zo"
    " zonder zou zouden"
    # Nordic.
    " att av bara behover blev bli blir dag deras deres det dette dig din ditt efter eg ej eller"
    " endre ett etter faar fick fik finnes finns fler for fore fran fungerar fungerer ga gar gjor"
    " gor gora hadde hade har havde hedder hej hela henne heter hitta hittar hos hur hva hvad hvem"
    " hvilke hvilken hvilket hvis hvor hvordan hvorfor hvornaar hvornar igen ikke ikkje inn inte"
    " jag jeg kommer kostar koster kunna kunne lage maste med meg mellan mellem mellom mer mig"
    " mina mine mitt mot mycket mye nagon nar ned nej noe noen nogen ny nye nytt och og ogsa opp"
    " oss pa paa samma sig sina ska skal skift skrive skulle slik som tid til till tror under upp"
    " ur ut utan uten vad vann var vara vare varfor vart ved vem vid vil vilka vilken vilket vill"
    " ville vore"
    # Polish.
    " aby albo ale az bardzo bez byc byl byla bylo co czemu czy czym dla dlaczego dziala gdy gdzie"
    " go ile jak jaka jaki jakich jakie jako jesli jest jestem juz kiedy komu kto ktora ktore"
    " ktory ktorych lub mam mnie moge moj moja moje moze mozna nad nam nie od ona oraz po podczas"
    " poniewaz prosze przed przez przy tak tam tego ten to tylko tym wiele za ze zeby zmien znaczy"
    " zostala zrobic"
    # Turkish.
    " acaba ama arasinda bana benim bir biz bu bunu cok daha degil diye eder edilir etmek fark"
    " gibi hangi hangisi hesap icin icinde ise kac kadar ki kim midir mu mudur nasil neden nedir"
    " nerede neresi neresidir niye olan olarak olur onu sen siz sonra ve veya yapilir yapmak yok"
    " zaman"
    # Romanian.
    " aceasta acest ar are asta cand cate cati catre cel cele cine cu cum daca deci despre dintre"
    " dupa ei fara fi fost ii imi intr intre isi iti lor mea mele mult pe pentru poate prin sau"
    " sub sunt unde unei unui vreau"
    # Czech.
    " ani asi by byt dnes jake jaky jeho jeji jen jsem jsi jsou kam kde kdo kdy kdyz ke kolik"
    " ktera ktere ktery mezi mne moc mohu muj muze muzu nebo nejsou neni pak podle pres pri pro"
    " proc prosim protoze sam tato tohle tom uz vam vas vsechno vy"
    # Finnish.
    " ehka eika ennen ero etta hanen joka jos jotka kanssa kautta kuin kuinka kuka kuten mihin"
    " mika miksi millainen milloin milta minka minun misista missa mista mita miten moni monta"
    " montako myos niin nyt ole olen oli onko ovat paljon paljonko saa saan siita sinun tai tama"
    " tassa tehda tehdaan toimii vaihdan vain voi voiko voin voinko"
    # Hungarian.
    " ahol aki ami amikor azt be csak egy egyik ez ezt fel hany hogy hogyan hol honnan hova kell"
    " kerem kicsoda lehet majd meddig melyik mennyi mennyibe mert miatt miert mikor milyen nekem"
    " nincs ossze szamara szep tudok ugy vagy vannak vissza volt"
    # Indonesian.
    " ada adalah agar akan aku anda antara apa apakah atau bagaimana bagi banyak belum berapa bisa"
    " bukan cara dalam dapat dari dengan dimana harus ingin ini itu jika juga kami kamu kapan"
    " karena kenapa kepada kita lagi lebih mana mengapa mereka oleh pada perbedaan saat saja saya"
    " sebagai secara sedang seperti siapa sudah supaya tanpa tentang tidak untuk yaitu yang"
    # What short texts in these languages are often about, and words of several of them.
    " adgangskode adresse annuler annullare archivo arquivo baixar bestand bestellen bestelling"
    " bestellung betaling bonsoir buongiorno cambiar cambiare cancelar cancellare capitale carta"
    " cartao carte cidade ciudad commande compte conta contrasena correo cuenta danke datei"
    " descargar diferenca diferencia differenza eliminar envio factura facture fichier gebuhr"
    " gratis gratuit gratuite haslo hauptstadt heslo hoofdstad karte kennwort konto kostenlos"
    " kreditkarte kundigen lieferung livraison losche loschen losenord mogu mudar odkud opzeggen"
    " ordine parola passe passord passwort pedido precio preco prezzo prijs prix receita receta"
    " recette rechnung rekening rezept ricetta scaricare senha spedizione supprimer tarjeta"
    " telecharger unterschied vergessen verschil verwijderen wachtwoord wijzigen zajak"
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
