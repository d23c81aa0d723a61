"""Words that turn a question round, in entries between semicolons.

What stands left of a bar is opposed to what stands right.

Inflected forms follow from the stems. Opposites by prefix and suffix (happy, unhappy; useful,
useless) are found by rule and need not stand here.
"""

from typing import Final

from embeddings.verify.lists import words

OPPOSED: Final = """
increase raise grow rise gain boost enlarge expand | decrease reduce lower drop fall shrink
decline diminish; upgrade | downgrade; promote | demote; maximum max maximize maximise | minimum
min minimize minimise; maximal | minimal; more | less fewer; most | least fewest; many much lots |
few little; bigger larger greater | smaller littler lesser; biggest largest greatest | smallest
littlest least; big large huge enormous giant massive | small little tiny; tall taller tallest |
short shorter shortest; long longer longest | short shorter shortest brief briefly; high higher
highest | low lower lowest; older elder oldest eldest | younger youngest newer newest; old older
oldest ancient elderly | new newer newest young younger youngest; newest latest | oldest earliest;
heavy heavier heaviest | light lighter lightest; thick thicker thickest fat fatter fattest | thin
thinner thinnest slim skinny; wide wider widest broad broader | narrow narrower narrowest; deep
deeper deepest | shallow shallower; fast faster fastest quick quicker quickest rapid quickly
rapidly | slow slower slowest slowly; strong stronger strongest | weak weaker weakest; strengthen
| weaken; hot hotter hottest warm warmer warmest | cold colder coldest cool cooler coolest chilly;
heat warm | cool chill; boil | freeze; freeze | thaw defrost melt; hard harder hardest difficult
tough | easy easier easiest simple simpler simplest; hard harder | soft softer; soften | harden;
loud louder loudest noisy | quiet quieter quietest silent; bright brighter brightest | dark darker
darkest dim dimmer; brighten | dim darken; lighten | darken; rich richer richest wealthy | poor
poorer poorest; expensive pricey costly dear | cheap cheaper cheapest inexpensive affordable; good
better best great excellent | bad worse worst terrible awful; better best improve | worse worst
worsen; improve | worsen deteriorate; advantage benefit upside pro pros strength | disadvantage
drawback downside con cons weakness; happy happier glad cheerful joyful | sad unhappy miserable
sadder; love adore like enjoy | hate dislike loathe detest; optimistic optimist optimism hopeful |
pessimistic pessimist pessimism hopeless; brave braver courageous fearless bold | cowardly fearful
timid scared afraid; confident | insecure shy unsure; generous | stingy greedy selfish; selfish |
selfless unselfish; kind nice gentle | cruel mean nasty unkind; polite | rude impolite; honest
truthful | dishonest lying deceitful; humble modest | arrogant proud conceited; patient |
impatient; lazy | hardworking diligent industrious; smart clever intelligent wise bright | stupid
dumb foolish unintelligent; calm relaxed | nervous anxious agitated tense stressed; relax |
stress; active | inactive passive idle; passive | aggressive; introvert introverted shy |
extrovert extroverted outgoing; liberal progressive | conservative; religious | secular atheist
irreligious; moral | immoral; guilty | innocent; guilt | innocence; beautiful pretty attractive
handsome | ugly unattractive hideous; clean cleaner | dirty filthy dirtier; tidy neat | messy
untidy; dry drier | wet wetter damp moist; sharp sharper | blunt dull; smooth | rough; tight
tighter | loose looser; tighten | loosen; full | empty; fill | empty drain; fill | vacate; safe
safer safest secure | dangerous unsafe risky hazardous; healthy healthier | unhealthy sick ill;
healthy | harmful; alive living | dead; live birth born | die death died; beginning start begin
commence launch | end finish stop cease terminate conclude; first firstly | last final lastly;
initial | final; earliest | latest; early earlier | late later; before | after; prior | after;
previous previously prior preceding last | next following subsequent upcoming; precede | follow;
past | future; ancestor | descendant; predecessor | successor; prequel | sequel; predict | recall;
morning am | evening night pm afternoon; day daytime | night nighttime; today tonight | yesterday
tomorrow; yesterday | tomorrow; sunrise dawn | sunset dusk; summer | winter; always | never; often
frequently usually regularly | rarely seldom infrequently; frequent common usual ordinary | rare
uncommon unusual; all every everything everyone | none nothing nobody; everybody everyone |
nobody; everywhere | nowhere; open opened reopen | close closed shut; lock | unlock; enter entry
entrance | exit leave departure; arrive arrival arriving | depart departure departing leave;
inbound incoming | outbound outgoing; outward | return; input | output; import | export; upload |
download; install | uninstall; mount | unmount dismount; insert add attach include append | remove
delete detach exclude subtract eject; add addition plus sum | subtract subtraction minus; multiply
multiplication product | divide division quotient; positive plus | negative minus; odd | even;
credit | debit; asset | liability; deposit | withdraw withdrawal; pay in | withdraw; save saving |
spend spending waste; save | lose; earn | spend lose; profit profitable | loss unprofitable;
surplus | deficit shortage; win winner victory | lose loser defeat loss; succeed success
successful pass | fail failure unsuccessful; accept approve | reject decline refuse deny; agree |
disagree refuse; allow permit let enable legal legalize permitted | forbid prohibit ban prevent
deny block disallow illegal forbidden banned; enable activate | disable deactivate; turn-on
switch-on | turn-off switch-off; in inside into indoors indoor | out outside outdoors
outdoor; within inside | outside beyond; internal inner interior | external outer exterior; up
upward upwards upstairs above | down downward downwards downstairs below; ascend ascending climb |
descend descending; above over | below under beneath underneath; top upper uppermost | bottom
lower lowermost; front | back rear; forward forwards | backward backwards; left | right; right
correct accurate true | wrong incorrect inaccurate false mistaken; true real genuine authentic |
false fake counterfeit artificial; real | imaginary virtual; natural | artificial synthetic; north
northern | south southern; east eastern | west western; near close nearby closer nearest closest
nearer | far distant farther farthest away; local domestic national | international foreign global
overseas; domestic | wild; urban city | rural countryside; public | private; private | shared;
personal | business corporate commercial; permanent permanently | temporary temporarily; rent |
own; male man men boy masculine | female woman women girl feminine; father dad | mother mom mum;
son | daughter; brother | sister; husband | wife; boyfriend | girlfriend; uncle | aunt; nephew |
niece; grandfather grandpa | grandmother grandma; groom bridegroom | bride; king | queen; prince |
princess; actor | actress; waiter | waitress; mr sir | mrs ms madam; parent | child; adult grownup
| child minor kid teenager; teacher | student pupil; doctor | patient; employer boss | employee;
landlord | tenant; buyer | seller; lender | borrower; host | guest; customer | vendor supplier;
attacker | defender; hunter | prey; singular | plural; single unmarried | married; marry |
divorce; together | apart separately alone; together | separate; join connect combine merge unite
| separate split disconnect divide part; connect | disconnect; attach | detach; assemble build
construct create make | destroy demolish dismantle disassemble; create | delete destroy; gather
collect | scatter distribute; show reveal display appear unhide | hide conceal disappear; appear |
disappear vanish; visible | invisible hidden; remember recall | forget; find discover | lose;
catch | miss throw; push | pull; pushing | pulling; press | release; hold keep retain | release
discard; catch | release; attack | defend; victim | perpetrator; enemy foe rival | friend ally;
war | peace; love | hatred; hope | despair; trust believe | distrust doubt disbelieve mistrust;
praise compliment | criticize criticise insult blame; reward | punish; reward | punishment;
support | oppose; supporter | opponent; for pro | against anti; encourage | discourage; motivate |
demotivate; attract | repel; include including inclusive | exclude excluding exclusive except;
with | without; compress zip | decompress unzip extract; encrypt | decrypt; encode | decode;
serialize | deserialize; compile | decompile; inhale | exhale; swallow | spit; wake awake | sleep
asleep; stand | sit; lift | drop lower; load | unload; pack | unpack; wrap | unwrap; fold |
unfold; tie | untie; zip | unzip; plug | unplug; dress | undress; cover | uncover; subscribe |
unsubscribe; follow | unfollow; block | unblock; mute | unmute; freeze | unfreeze; register
sign-up enrol enroll | unregister deregister; log-in sign-in login signin | log-out log-off
sign-out logout signout; hire employ recruit | fire dismiss sack layoff; appoint | dismiss; resign
| reinstate; advance | retreat; upstream | downstream; ceiling | floor; roof | basement; zenith |
nadir; entry-level junior beginner novice amateur | senior advanced expert professional; beginner
| advanced; basic | advanced premium; simple | complex complicated; simplify | complicate;
specific | general; abstract | concrete; theoretical | practical; formal | informal casual; major
| minor; majority | minority; primary main | secondary; superior | inferior; senior | junior;
sender | recipient receiver; speaker | listener; author | reader; producer | consumer; supply |
demand; cause | effect; question | answer; theory | practice; quality | quantity; quantitative |
qualitative; deductive | inductive; cloudy | sunny; storm | calm; sweet | bitter sour; spicy hot |
mild; raw | cooked; fresh | stale frozen; vegetarian vegan | meat; organic | inorganic; mobile |
stationary fixed; flexible | rigid fixed; fixed | variable; static | dynamic; constant | variable;
sync synchronous | asynchronous async; online | offline; wired | wireless; analog analogue |
digital; hardware | software; frontend | backend; client | server; read | write; reader | writer;
get | put; horizontal horizontally | vertical vertically; row | column; portrait | landscape;
parallel | serial; concave | convex; clockwise | counterclockwise anticlockwise; uppercase capital
| lowercase; numerator | denominator; dividend | divisor; sine | cosine; integral integrate |
derivative differentiate; acid acidic | alkaline base; conductor | insulator; solid | liquid gas;
liquid | gas; reactant | product; oxidation | reduction; proton | electron; anode | cathode;
herbivore | carnivore; predator | prey; mammal | reptile; inhibit | stimulate; symptom | cause;
gain | lose; lose-weight | gain-weight; overweight obese | underweight; hypertension |
hypotension; tighten | relax; stretch | contract compress; inflate | deflate; inflation |
deflation; bull bullish | bear bearish; long-term | short-term; gross | net; wholesale | retail;
prepaid | postpaid; refundable | nonrefundable; economy | business first-class; one-way |
round-trip return; departure | arrival; takeoff | landing; take-off | land; check-in | check-out;
checkin | checkout; boarding | disembarking; pick-up pickup | drop-off dropoff; oneself | others;
winner | loser; heaven | hell; angel | devil demon; god | devil; good | evil; hero | villain;
comedy | tragedy; fiction | nonfiction; introduction | conclusion; prologue | epilogue; prefix |
suffix; header | footer; synonym | antonym; vowel | consonant; question | statement; active |
passive; innocent | guilty; ally | enemy; capitalism | communism socialism; democracy |
dictatorship; democrat democratic | republican; right-wing | left-wing; offense offence | defense
defence; offensive | defensive; home | away; amateur | professional; employed | unemployed;
employment | unemployment; literate | illiterate; mature | immature; voluntary | mandatory
compulsory obligatory; optional | mandatory required compulsory obligatory; necessary |
unnecessary optional; temporary | permanent; plentiful abundant | scarce; abundance | scarcity;
dense | sparse; transparent | opaque; clear | unclear vague cloudy; obvious | subtle; guilty |
acquitted; convict | acquit; arrest | release; imprison | free release; free | paid; free | busy
occupied; available | unavailable occupied; vacant | occupied; present | absent; presence |
absence; attend | skip miss; accidental accidentally | deliberate deliberately intentional
intentionally; rise | set; sunny | rainy
"""

CONVERSE: Final = """
buy purchase | sell; buying | selling; lend loan | borrow; give | take receive get; send | receive
get; teach | learn; come | go; bring | take; rent lease | let; pay | charge; ask | answer; offer |
accept; issue | redeem; transfer | receive; invite | visit; parent | child; employ | work; cause
lead | result caused; win | lose; push | pull; precede | follow; own | belong; contain include |
belong
"""
"""Opposed from where one stands: "can you lend me" is "can I borrow"."""

COMPLEMENTS: Final = words(
    """
    fail failed failing failure lack lacking missing refuse refused avoid prevent stop stops
    stopped stopping quit ban banned block blocked blocking disable disabled remove deny denied
    decline declined reject rejected forget forgot forgotten lose lost unable impossible illegal
    forbidden prohibited exempt absent empty broken broke lacks void invalid free off unpaid
    minus except excluding exclude instead rather other besides apart unless neither nor cancel
    cancelled cancel skip miss missed hate dislike allergic against only different differ
    difference wrong incorrect false unlike stay keep remain disappear gone vanish disappeared
    ended end ceased ceasing cease stuck frozen dead down crash crashed crashes trouble problem
    problems issue issues error errors malfunction hidden hide ignore ignored ignoring rid
    delete deleting escape keeps until still yet pending waiting delayed late overdue unless
    hard difficult struggle struggling failing opt unsubscribe withdraw drop leave leaving
    closed locked expired denying refusing slow faulty defective dud untouched zero 0 alone
    unused alternative alternatives bypass exclude excludes exception exceptions forbid forbids
    disallow
    """
)
"""Words by which a text may say what another says with a negation: "stop" for "not any more"."""
