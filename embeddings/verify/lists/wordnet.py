"""Synonyms from WordNet 3.0, in groups between semicolons: common words in their first senses.

Taken from Debian's package wordnet-base. Left out is what the written lists say already, and words
that those call opposed or two of a kind. WordNet's licence:

This software and database is being provided to you, the LICENSEE, by
Princeton University under the following license.  By obtaining, using
and/or copying this software and database, you agree that you have
read, understood, and will comply with these terms and conditions.:

Permission to use, copy, modify and distribute this software and
database and its documentation for any purpose and without fee or
royalty is hereby granted, provided that you agree to comply with
the following copyright notice and statements, including the disclaimer,
and that the same appear on ALL copies of the software, database and
documentation, including modifications that you make for internal
use or for distribution.

WordNet 3.0 Copyright 2006 by Princeton University.  All rights reserved.

THIS SOFTWARE AND DATABASE IS PROVIDED "AS IS" AND PRINCETON
UNIVERSITY MAKES NO REPRESENTATIONS OR WARRANTIES, EXPRESS OR
IMPLIED.  BY WAY OF EXAMPLE, BUT NOT LIMITATION, PRINCETON
UNIVERSITY MAKES NO REPRESENTATIONS OR WARRANTIES OF MERCHANT-
ABILITY OR FITNESS FOR ANY PARTICULAR PURPOSE OR THAT THE USE
OF THE LICENSED SOFTWARE, DATABASE OR DOCUMENTATION WILL NOT
INFRINGE ANY THIRD PARTY PATENTS, COPYRIGHTS, TRADEMARKS OR
OTHER RIGHTS.

The name of Princeton University or Princeton may not be used in
advertising or publicity pertaining to distribution of the software
and/or database.  Title to copyright in this software, database and
any associated documentation shall at all times remain with
Princeton University and LICENSEE agrees to preserve same.
"""

from typing import Final

WORDNET: Final = """
abandoned derelict deserted; abbreviated shortened truncated; abnormal unnatural; aboriginal
native; abroad overseas; abruptly dead short suddenly; absent lacking missing wanting; absolute
sheer; absolutely dead perfectly utterly; absorbed captive intent wrapped; absorbing fascinating
gripping; absurd ridiculous; accent emphasis; accent stress; acceptance adoption; accepted
recognised recognized; accessory adjunct auxiliary; accidentally unexpectedly; acclaim hail
herald; accommodate adapt; accommodate fit suit; accommodation fitting; accompanied attended;
accompanying attendant resultant; accomplish action fulfill; accomplished completed realised
realized; accord concord consort; accordingly consequently; account chronicle history; accredited
commissioned licensed; accurate precise; accustomed customary; ace crack super tops; ace one
single unity; ache pine; acid superman; acknowledge admit; acres estate; act behave; acting
performing; action activity; action sue; active fighting; acute intense; additive linear; adept
expert practiced proficient; adequate equal; adjacent neighboring; adjacent next; adjective
procedural; adjunct assistant; administration governance organisation; adolescent teen teenage;
adopt borrow; adorable lovely; adored worshipped; adorned decorated; adult grown; adult
pornographic; advance beforehand; advance improvement; advance progress; adventure chance risk;
adventure hazard stake; advisory consultative; advocate counsel; advocate urge; aerodynamic
flowing sleek streamlined; affecting touching; affiliate associate consort; affiliated attached
connected; affirmative optimistic; affluent flush wealthy; afford yield; aforementioned said;
aftermath consequence; aftermath wake; afterward afterwards later subsequently; aged elderly; aged
elderly older; agency bureau office; aggravated provoked; aggregate total; aggressively sharply;
agrarian agricultural farming; agreement correspondence; agreement understanding; agriculture
farming; aid assist assistance; aid assistance; aim intent intention purpose; aim object
objective; airing spreading; akin kin; alarm alert; alert brisk rattling; alien exotic; alien
stranger unknown; all completely entirely totally whole wholly; alliance confederation; ally
friend; almost nearly virtually; alone entirely exclusively only solely; alone lone lonely; alone
solo; aloud loud loudly; alright fine; alter vary; alternate alternative substitute; alternate
replacement; alternatively instead; always constantly invariably; amalgamated consolidated fused;
amateur recreational; amazed astonished stunned; amazing astonishing; amazing awesome; amazingly
surprisingly; ambitious challenging; amused diverted entertained; amusement entertainment; amusing
comic comical funny; analog analogue; analogous correspondent; ancestral hereditary; anchor
ground; angel saint; angered enraged furious; angle lean tilt; animal beast creature; animal
sensual; announce declare; announced proclaimed; annoyed harassed; annoying irritating; annual
yearly; annually yearly; anterior prior; anticipated awaited; anxious dying; apostolic papal
pontifical; appalled shocked; apparent evident manifest patent plain unmistakable; apparent
seeming; apparently evidently obviously plain plainly; apparently ostensibly seemingly; appeal
charm; appear seem; appoint constitute; appointment designation naming; appointment engagement;
approach coming; approaching coming forthcoming upcoming; appropriate conquer; appropriate
reserve; approximate estimate gauge; apt disposed given minded tending; apt liable; arc arch;
archaeological archeological; archaic primitive; arched arching bowed; architect designer; arctic
icy; ardent fiery; arena domain orbit sphere; argue reason; arguing argument controversy; argument
statement; armor armour; armored armoured; aroused stimulated stirred; arrest halt stay; arresting
stunning; arrival reaching; artillery gun; arts humanities; artwork graphics; asleep numb; assess
evaluate; asset plus; associate companion familiar fellow; associate connect link relate; assumed
fictitious pretended sham; assure ensure guarantee; astonishing staggering; astronomical galactic;
asylum sanctuary; athletics sport; atomic nuclear; attending attention; attention care; attested
documented; attract pull; august grand; august revered venerable; authoritative classic classical
definitive; authorities government regime; automatic robotic; automatically mechanically;
autonomous independent sovereign; autumn fall; auxiliary subsidiary supplemental supplementary;
avenue boulevard; average ordinary; avid greedy; awake wake; award grant; award honor honour;
awareness consciousness; away forth; awful dire dread dreadful fearful frightening horrific
terrible; awful dreadful terrible; awful terribly; bach bachelor; back backward backwards; back
hind; badly gravely seriously severely; badly ill poorly; baffled bewildered confused; band
circle; bang blast; bang bolt slap smack; bang slam; banging thumping; banned prohibited; bar
block blockade; barbed biting; bare naked nude; barren bleak; basal base; bathroom john; bats loco
nuts; battalion pack; battle engagement fight; battle struggle; beam shine; bear birth; beast
savage; beat pulse; beauty knockout; becoming decent; beg pray; behavior behaviour; behavior
conduct; behaviour conduct; belief feeling impression notion; belly stomach; beloved darling;
beloved honey; bench terrace; bend turn; benefit profit; benefit welfare; berth moor; bet stakes;
betting dissipated; biased coloured; bicycle bike pedal; bid command; bid tender; bigger larger;
bind bond; bite sting; bizarre eccentric; blame fault; blame rap; blanket broad encompassing
extensive wide; blanket cover; blast boom smash; blazing blinding dazzling glaring; blazing
conspicuous; block blockade; bloom flower; blunt numb; blurred fuzzy hazy; blush crimson flush;
board room; bodied corporal corporate embodied; bodily corporal; bolt stiffly; bony gaunt haggard
pinched skeletal; boom din; boom thunder; booming flourishing prosperous roaring thriving; border
bound; border margin; border surround; bore drill; bore eager; born innate; boss chief; bother
devil gravel rag; bother trouble; bouncing spirited; bound boundary; bound boundary edge; box
package; brace steady; bracing brisk refreshing; brave weather; breach gap; breast summit;
breeding training; brilliant superb; bringing delivery; broad wide; broke bust; bronze tan;
brooding reflective; brook creek; brook stomach; brow eyebrow; brow forehead; brown brownish;
brutal cruel fell savage vicious; buck dollar; build flesh; building construction; built
reinforced; bulging convex; bulk majority; bulk volume; bully cracking smashing swell; bump
encounter; bunch bundle cluster; bunch cluster; bunch crowd gang; burden load loading; buried
interred; burn tan; burst explosion; bury inter; bust raid; busy occupy; butcher slaughter; buy
corrupt; buy steal; bye goodbye; cab taxi; cable telegraph wire; calculated deliberate; calling
career; calm quiet; calm serene; calm steady; camp tent; campaign crusade; cancel offset;
candidate nominee; canned transcribed; canton quarter; canvas poll; cap crest; capability
capacity; capable subject; captive imprisoned jailed; capture charm entrance trance; cardinal
central fundamental key primal; carefully cautiously; cargo freight; carry transport; cart drag
hale haul; castle palace; cat guy; cat sick; catalog catalogue; catching detection; category
class; celebrated famed famous illustrious notable noted renowned; celebrity fame; celestial
heavenly; cent penny; centenary centennial; center centre concentrate focus; center centre middle;
center halfway middle midway; century hundred; certainly surely; chair chairman; chair moderate;
challenge dispute; chance fortune luck; chance opportunity; chancellor premier; chant tone;
charming magic magical wizard; charter hire lease; chartered hired leased; chase dog tail trail;
chase following pursuit; chat gossip jaw; cheap flash loud; cheerful upbeat; cheering comforting
satisfying; chief main master principal; chiefly mainly primarily principally; child kid minor;
chilling scary; chip nick; choice pick; choice prize quality select; choice selection; choir
chorus; choose prefer; chopped shredded sliced; chronic continuing; chuck ditch; churning
turbulent; circuit tour; circular rotary; circular round; circumstances luck; civilized polite;
clad clothed; clandestine secret undercover underground; clash jar; class grade; clay mud; clean
fair; clean plum; clear open; clenched clinched; click tick; climate mood; climb raise; cloak
mask; cloak robe; clock time; close closely tight; close finale finish last; closer nearer;
closest nearest; cloth fabric; clothed draped wrapped; clothing wear; cloud fog mist obscure; club
guild lodge society; club nine; clutch seize; coach manager; coalition fusion; coarse vulgar; coat
surface; cod collect; coil spiral; coin mint; collateral confirming; collected gathered; collected
poised; collectively jointly; colloquially informally; colony settlement; colorful colourful;
combine compound; comedian comic; comfort console; comfort ease; commanding dominating
overlooking; comment commentary; comment input; comment remark; commission committee; common
commons green park; commonwealth country nation; comparative relative; comparatively relatively;
competition contest; complain plain; complementary completing; complete finish; component element
factor; comprise contain incorporate; concentration density; concept construct; concern fear;
concern interest; concern refer relate; conclude reason; concluding final; conclusion decision;
concurrent simultaneous; condition discipline; condition status; confederation federation;
conference league; confident convinced positive; configuration shape; conflict struggle; confront
face; confused scattered; congregation fold; conjunction junction; conquer curb suppress;
consecrated dedicated; consecutive sequential serial successive; consequently therefore; consider
regard view; considerably substantially; consistently systematically; constant invariant;
constituted established; constitution establishment; construct manufacture; consume down;
consuming overwhelming; content message; contiguous immediate; continue proceed; contrary opposite
reverse; control curb; convention normal rule; converse reversed; conversion transition; converted
reborn; conviction sentence; cook prepare ready; coordinated unified; corner tree; cornered
trapped; correspond match; corrupt crooked; cosmetic decorative ornamental; couch sofa; counsel
guidance; countless myriad; couple pair twin; coupled joined linked; course flow; course
naturally; court romance woo; court woo; coveted desired; cozy intimate; craft trade; craved
desired; cream lick; crest summit; crimson red; crippled game halt lame; crisp sharp; crisp toast;
critique review; crop harvest; cross transverse; crowd herd; cruise sail; crush squeeze; crush
suppress; crushed humiliated; cry scream shout yell; cry shout; crying glaring; crying insistent;
crying tears; cryptic mysterious; cue remind; cultural ethnic; cunning cute; cunning sly; cured
healed recovered; curiously oddly; curriculum programme; curse oath; curse swear; curve sheer
trend; curve wind; custom usage; cutting edged stinging; cycle round; dad daddy pop; daily
everyday; damaging detrimental; dame doll; dame lady; damp moist; dangerous grave; darkness
shadow; darling favorite favourite pet; dart dash; dart fleet; dash smash; dash sprint; dashed
dotted; dazed stupid; deadly lethal; debate deliberate; debris dust; debut entry introduction;
decade ten; deceased departed; decent nice; decide resolve settle; decidedly definitely; deck
grace; declared stated; decoration medal ribbon; decree rule; decreed ordained prescribed; deep
late; deeply profoundly; defeat frustration; defeat kill; defeat overcome; defeated disappointed
frustrated thwarted; defender guardian; defined outlined; degraded dissipated; degree level;
degree stage; delay wait; delegation relegation; deliberately intentionally purposely; delicately
fine; delicious delightful; deluxe luxurious princely; demand require; demo demonstrate present;
democracy republic; demolished dismantled; demon devil; demonstrate prove; demonstration
presentation; departure difference; departure leaving; depict picture; depicted pictured
portrayed; deposit lodge stick wedge; depot storage; depot terminal; deprived disadvantaged;
descent origin; deserve merit; design plan; designed intentional; desirable suitable worthy;
desperately urgently; despised hated; destination goal; destination terminus; destiny fate;
destroy ruin; destroyed ruined; detached isolated separated; detailed elaborate elaborated; detect
discover notice observe; determination finding; determine influence shape; development evolution;
devout earnest; diagonal sloping; diagram plot; diary journal; differently otherwise; dig shaft;
dim faint shadowy; diminished weakened; direct directly straight; direct target; directing
directive guiding; director manager; dirt soil; dirty soil; disabled handicapped; disaster
tragedy; disc disk; disc record; discharged dismissed fired; disconnected fragmented split;
discourse discuss; discovered observed; disguised masked; disgust revolt; disgusting foul;
disorder distract; dispersed spread; disposed prepared; dispute scrap; distinctive typical;
distinguish spot; distinguished imposing; distorted twisted; distressed unhappy; distribute
spread; district territory; district zone; disturbed upset worried; disturbing worrying; disused
obsolete; diversity variety; divide fraction; dizzy silly; doc doctor physician; doctrine
philosophy; document papers; domed vaulted; dominate reign; doom fate; doom sentence; door
doorway; dose drug; dot stud; double dual; doubtful dubious; down downward; down downward
downwards; dozen twelve; dozen twelve xii; dozens lots scores tons; draft outline; drama play;
dramatic spectacular striking; draw pull; drawn haggard worn; dread fear; drift float; drift
stray; drifting floating; dripping soaking; drive motor; dry ironic wry; dub nickname; dumb
speechless; duo pair; duplicate matching twin twinned; durable lasting; dusty stale; duty
responsibility; earlier sooner; earnest sincere solemn; eased relieved; eastbound eastward; eating
feeding; echo ring; ecumenical universal; education instruction; effect impression; effective
efficient; eight viii; elder older; elder senior; elect elite; elegant graceful; elevation
raising; elliptic elliptical oval; elongated prolonged; embarrassed humiliated; embrace hug;
eminent soaring towering; encircled surrounded; encompassing surrounding; encourage further
promote; encouraging supporting; endless eternal; enforce implement; enforce impose; enforced
implemented; engage pursue; engraved etched inscribed; enormous tremendous; enough plenty;
enrollment registration; enter participate; entering entrance; entire intact integral; environment
surroundings; envisioned pictured; epic heroic; episcopal pontifical; equal peer; equal rival;
equality equation; equally evenly; equipped furnished; erroneously mistakenly; especially
specially; essay test; essence substance; essential necessary requirement; essentially
fundamentally; establish found institute; establish found launch; establishment institution;
eternal perpetual; ethnic pagan; evaluate judge; evaluation rating; eventually finally; everyday
mundane routine; evidence grounds; evil vicious; examine study; exceed top; exceeding exceptional
surpassing; excellent splendid; excess extra redundant spare surplus; excessive extravagant;
excessive unreasonable; exchange interchange; exclusive sole; exemplary model; exercise practice;
exercise usage use; exhaust tucker; exhausted spent; existence universe world; existent real; exit
passing; expansive grand; expect require; explicit expressed; exploited used; explore research;
explosive volatile; expose reveal; exposed uncovered; express limited; express utter; expressed
uttered; expression face; exquisite keen; extended lengthy prolonged; exterior outside; external
outside; extreme utmost; extremely highly; extremely passing super; fabric framework; fabricated
fictional fictitious; fabulous mythical mythological; facility installation; factory mill; faculty
module; failing weakness; fair reasonable; fake faux imitation simulated; fake forge; fake fraud;
false mistaken; falsely incorrectly; family household; fancy image picture; fantastic grotesque;
fantastic howling marvelous rattling terrific tremendous wonderful; fashion manner mode style way;
fast tight; faster quicker; fatigue jade tire weary; favorable favourable; favored favorite
favourite pet preferred; favour privilege; feasible viable; feature sport; feel spirit; fell hide;
feral savage; ferocious fierce furious; fertile prolific; fierce tearing; fight oppose; file
register; fin five; final net; finally ultimately; financial fiscal; fine ticket; firm house;
firmly securely; first firstly foremost; fit set; fitting meet; fix jam mess; fix secure; fixed
set; flash wink; flat level plane; flat straight; flavor season; fleet swift; fleeting fugitive
momentary; flick leaf thumb; flint stony; flip somerset; flip toss; flood swamp; floor shock;
flora plant; flora vegetation; flushed rosy; fly wing; folk tribe; following next; forbidden
prohibited taboo; forest woodland; forge hammer; form organize; formally officially; former
sometime; fort fortress; fort garrison; forth forward onward; fortunately luckily; forwards onward
onwards; foster further; foul funky; four quartet; fourteen xiv; fox trick; frail imperfect;
framework model; frank outspoken; frantically madly; free loose; free loose release; free rid;
freelance mercenary; frequent shop; fresh freshly new newly; frightened panicked terrified; frost
ice; frozen rooted; fulfill satisfy; function map; function purpose use; function serve; fund
store; furrowed rugged; furthermore moreover; fury rage; fusion merger; futile vain; gage game
stake; gage gauge; gain increase; gain win; gap opening; gap spread; gaze stare; genetic
hereditary inherited transmitted; gently mildly; gesture motion; ghostly spectral; gift invest;
gift talent; gifted talented; gigantic mammoth; girl miss; given granted; giving handsome; glacial
icy; glistening glossy shiny; global spherical; global world worldwide; glorious magnificent;
goofy silly; grab snap; grade level tier; grade rank rate; graded ranked; graduate postgraduate;
grand thousand; grasp hold; grasping greedy; grateful thankful; grave sculpture; grave sober
solemn; grave tomb; gray grey; gray grey greyish; greatest sterling; green greenish; grim
relentless stern; grin grinning smile smiling; grip handle; grip hold; groan moan; gross revenue;
ground reason; groundbreaking innovative; grounds yard; group radical; grouped sorted; growing
growth; growl rumble; gruff hoarse husky; guard ward; guess hazard venture; guess imagine suppose
think; guidance steering; gym gymnasium; halfway midway; hall hallway; hall lobby; handle treat;
harbor harbour; harbor harbour haven; hardened tempered; hardy sturdy; harm hurt injury; harness
tackle; harry plague; hastily hurriedly; hate hatred; haunted obsessed preoccupied; haunting
persistent; hazy misty; healing therapeutic; heart pump; heated het; heaven paradise; helping
serving; hence therefore thus; herald predecessor; hesitate pause; hideous horrific outrageous;
highland upland; highlight spotlight; hilly mountainous; hit hitting striking; holding property;
honest honorable; honor honour; honor honour respect; honor honour reward; honorable honourable;
honored prestigious; hood punk tough; hook rob; hoover vacuum; hopeful promising; hot raging;
however nevertheless nonetheless notwithstanding; huge immense vast; hulk tower; humor humour;
hunger lust; hurry zip; hurt smart; hurt wounded; hushed muted subdued; hypothesis theory;
identify name; ignored neglected; iii three; illegitimate illicit outlaw outlawed; illuminated
lighted lit; immature young; immensely vastly; imminent impending; imposing noble; impoverished
needy; impromptu spontaneously; improper unlawful; improvised makeshift; inaugural initiative
maiden; incorporate incorporated integrated merged unified; incorporate integrate; incorrectly
wrong wrongly; increasingly progressively; incredible unbelievable; indicate point; indicate
signal; individual mortal person soul; individual single; individually separately; indoors inside;
industry manufacture; inevitably necessarily needs; infamous notorious; infinite space; inherent
integral; inherent underlying; innovation invention; inquiry research; inside interior; insistent
repetitive; instant moment; instrument tool; integrate mix; integrity unity; intellectual
rational; intentional knowing; interchange substitute; interest sake; interference intervention;
interim meanwhile; intermediate medium; internet net; interpreted taken; intimately nearly;
involvement participation; isolated stray; issue publish; issue supply; jam mob pile; jammed
packed; jimmy lever prize; jockey shaft; joined united; jolly moderately reasonably; jolted
shaken; josh kid; joy pleasure; jury panel; justify warrant; keen penetrating piercing; kingdom
realm; knife stab; knockout severe; lab laboratory; label mark tag; labeled labelled tagged; labor
labour; labor labour tug; lacking wanting; laden load; laden loaded; lam run; language speech; lap
lick; largely mostly; last survive; lasting permanent; lately recently; later posterior; laugh
laughter; lavish lush plush; lawsuit suit; lead result; leaders leadership; leadership leading;
leading prima star starring stellar; lean list; lean thin; leaning tilted tipped; learning
scholarship; lease letting; legion numerous; legitimate logical; liberal progressive; liberation
release; license permit; life living; lift raise; likely probably; likewise similarly; lit
literature; little slight; locality neighborhood neighbourhood vicinity; located placed situated;
log lumber; lone solitary; lord master; lowering threatening; loyal patriotic; mac mack; maid
maiden; majestic proud; making qualification; male manly; mall plaza; mama mom; mandate mandatory;
manufacturer producer; marine maritime nautical; marital married; marked pronounced; marketing
selling; marred scarred; massacre slaughter; master overcome; mat matt; mated paired; math
mathematics; maximal maximum; meaning pregnant; meantime meanwhile; measure step; measured metric;
mechanized motorized; medial median; meek mild; melancholy somber; melody tune; memory
remembering; menacing ominous sinister threatening; mention note observe remark; mention refer;
mention reference; merchandise trade; merge unite; metal metallic; meter metre; mighty powerful;
migrant migratory; militia reserves; milky whitish; min minute; minimal minimum; minister pastor
rector; minute moment second; minutes proceedings; miscellaneous mixed; miserable pathetic poor;
miserable suffering; mobile nomadic wandering; mocking taunting; mocking teasing; mod modern;
model pattern; molded shaped wrought; monkey potter; motionless static; motive motor; mount wax;
mouse sneak; mouth speak talk; move travel; moved stirred touched; muffled muted softened; mum
silent; musician player; mute unspoken; mutual reciprocal; mysterious mystic occult; narrative
story tale; nasal pinched; nationally nationwide; neat orderly; neighborhood neighbourhood; nerve
steel; nestled snuggled; new novel; nodding weeping; nominal token; north northward northwards;
northbound northward; northeast northeastern; northwest northwestern; notable noteworthy; note
notice; noteworthy remarkable; novel refreshing; null void; obscure vague; obsessed possessed;
occupy reside; oddly strangely; offended pained; only sole; operational usable; operative
surgical; opponent opposing; opposite paired; opposition resistance; optic optical visual; orient
point; origin root source; outdoors outside; outline sketch; output yield; outrageous steep;
outright unlimited; outstanding prominent striking; overlooked unmarked; ownership possession;
pace step; painful sore; pale wan; panic terror; parade troop; paramount predominant; parent rear;
part partially partly; partition zone; pass walk; passage transition; passing transient; passive
peaceful; past preceding retiring; pat slick; pat tap; patch piece; patch plot; patrol police;
pattern practice; pause suspension; peak prime; peaked poorly; peculiar special; penalty
punishment; perceived sensed; percentage share; perfect pure staring utter; permission permit;
perpendicular vertical; persistent relentless; perspective view; petite tiny; petition prayer;
petition request; petty secondary; petty trivial; phase stage; phrase word; pictorial vivid;
piercing stabbing; pink rap; pit scar; pitch sky toss; plan program; planet satellite; planetary
terrestrial; planned plotted; plant works; pledged sworn; poetry verse; pointless wasted; polish
smooth; pond pool; pose posture; pot throne; potential voltage; pound ram; precious wanted;
predatory raiding; predominant prevailing prevalent; premier prime; presenter sponsor; presently
shortly soon; press urge; pressing urgent; prey raven; prey target; price terms; print publish;
privy secluded; prize treasure value; pro professional; probing searching; proceeds take yield;
process treat; processed refined; prof professor; proficient technical; profits win; program
programme; project task; projected projecting protruding relieved sticking; promptly readily;
proportional relative; protagonist supporter; protected saved; provide render supply; province
responsibility; province state; provisional tentative; pumped wired; purely strictly; purple
violet; pursuit quest; push thrust; quest seeking; questioning skeptical; quietly softly; race
rush speed; radical revolutionary; radical ultra; radio wireless; rage ramp storm; railroad
railway; rain rainfall; range reach; range reach scope; range stray swan wander; rap tap; raped
ravaged sacked; rarely seldom; rash reckless; ratified sanctioned; rattling real; reaching
stretch; react respond; realize recognize; reasonable sensible; reasoning thinking; rebellion
revolt rising uprising; recall remember; reclaimed rescued; reel spin; refuge safety; regard
respect; regret rue; reigning ruling; reinforced strengthened; rely trust; remainder rest; remains
stiff; remarkable singular; remarkably unusually; rent rip tear; rescue saving; resignation
surrender; resolution resolve; respective several various; result solution; retire withdraw;
retreat withdraw; revealing revelation; revealing telling; reverend sublime; rigorous strict;
ripping splitting; rippled wavy; risky speculative; road route; roar thunder; rock stone; rocky
stony; roll roster; rooms suite; rub scratch; ruined sunk undone; run trial; sail sweep; salute
toast; scholar student; science skill; scope setting; scrap trash; scream yell; screen test;
screening showing viewing; seasoned veteran; seated sitting; sec second; section segment;
sensation star wizard; separated spaced; sequence succession; settlement village; seven vii; shade
shadow; shaking trembling; shaky shivering trembling; shift transformation; shin skin; shop
workshop; shouted yelled; shy unsure; significant substantial; sixteen xvi; slender slim; slip
steal; slippery tricky; snap tear; social societal; someplace somewhere; song vocal; sore tender;
southbound southward; southeast southeastern; southwest southwestern; sovereign supreme; spare
trim; spark trigger; spell tour; spite wound; sponsor supporter; spot spy; stabbing wounding;
stairs steps; state submit; stay stick; steel sword; stifled strangled; stock tired; strap whip;
stress tension; stricken struck; study survey; style title; sub submarine; sub submarine torpedo;
sub substitute; subject theme topic; submerged underwater; substantial substantive; substitute
utility; suffer sustain; super superintendent; supplemental supplementary; suspect suspicious;
suspicious wary; swan swear; sweeping wholesale; swollen vain; systematic taxonomic; tackle
undertake; tag ticket; taking winning; taut tight; teen teenager; tertiary third; test trial;
tested tried; theater theatre; thence thereof; thirteen xiii; thread wind; three trinity trio;
tormented tortured; transfer transportation; transit transportation; triumph victory; triumphant
victorious; troubled turbulent; twist worm; twisting winding; uncanny weird; uncertain unsure;
unidentified unknown unnamed; unpaid volunteer; upright vertical; vale valley; variable varying;
victor winner; victorious winning; vile worthless; visionary windy; voluntary volunteer; wandering
winding; war warfare; westbound westward; whip worst; worse worsened; yellow yellowish
"""
