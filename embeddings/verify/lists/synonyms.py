"""Words that can say the same thing in some sentence, in groups between semicolons.

Being equals here accepts nothing: it only leaves a pair of texts to the verifier.
"""

from typing import Final

SYNONYMS: Final = """
delete remove erase wipe drop eliminate get-rid-of rid clear scrap; buy purchase acquire order
get; get obtain receive acquire fetch gain have; get become; start begin commence launch initiate
kick-off open; stop halt cease quit discontinue end cancel; end finish conclude terminate stop
close; fix repair mend solve resolve troubleshoot correct address sort sort-out rectify remedy;
big large huge great enormous; small little tiny; photo picture photograph image pic pics
snapshot; movie film flick; car automobile vehicle auto; phone telephone mobile cellphone
smartphone cell handset; kid child youngster; quick fast rapid speedy swift; smart intelligent
clever bright; happy joyful glad cheerful content pleased; rich wealthy affluent; sad unhappy
miserable down; scared afraid frightened fearful; error mistake fault bug glitch problem issue
trouble failure; answer reply respond response; select choose pick opt; permit allow let enable
authorize authorise; modify alter change edit adjust amend update revise; verify confirm check
validate authenticate prove; occur happen take-place; hard difficult tough tricky challenging;
easy simple straightforward effortless; entire whole complete full total all; doctor physician gp;
attorney lawyer solicitor; job occupation profession position employment work career post role;
shop store retailer outlet; garbage trash rubbish waste; assist help aid support; show display
present reveal demonstrate exhibit; show list; make create build produce construct generate
develop form prepare craft compose; create set-up setup establish found open; write compose draft
author pen; use utilize utilise employ apply; try attempt; want wish desire like; need require
must necessary; keep retain maintain preserve hold stay; increase raise boost grow improve enhance
rise; improve enhance better boost upgrade; decrease reduce lower cut shrink lessen minimise
minimize; transfer move send shift; send ship dispatch mail post deliver email; deliver delivery
ship shipping shipment; package parcel order delivery shipment; arrive come reach get; return
send-back give-back; refund reimburse repay money-back; pay settle cover; payment transaction
charge; cost price fee charge expense pay rate; cost worth price value; expensive pricey costly;
cheap inexpensive affordable low-cost; money cash funds fund; salary pay wage income earnings;
bill invoice statement; account profile; password passcode passphrase credential; login log-in
sign-in signin log-on; logout log-out sign-out signout; register sign-up signup enrol enroll join
subscribe; reset restore recover; recover retrieve restore regain get-back; forget lose;
block freeze lock ban stop; activate enable turn-on switch-on; deactivate disable turn-off
switch-off; cancel call-off abort terminate end close revoke; close shut terminate end; postpone
delay defer put-off reschedule; book reserve schedule arrange make; booking reservation;
appointment meeting; travel go journey trip; trip journey vacation holiday tour travel; flight
plane fly; hotel accommodation; airport airfield; ticket fare pass; passenger traveller traveler;
luggage baggage bag suitcase; airline carrier; visit see go; live reside dwell stay; house home
residence; apartment flat; city town; country nation state; land country; person individual human
someone somebody people; people folks persons citizens inhabitants population; woman lady female;
man guy male gentleman; friend buddy pal mate; boss manager supervisor; employee worker staff;
company firm business corporation organization organisation enterprise; customer client consumer
user; leader head chief; ceo head boss; president leader head; teacher instructor tutor educator;
student pupil learner; learn study master; teach train instruct educate; school college
university; exam test examination; grade mark score; find locate discover look-up; find get;
search look seek hunt find; look see view watch check; see view watch look read; tell inform say
explain advise notify; explain describe clarify elaborate; say state tell mention; talk speak chat
converse; ask inquire enquire query request; request ask demand order; call phone ring dial
contact telephone; contact reach call get-in-touch; meet encounter; know understand aware;
understand comprehend grasp get; think believe consider reckon feel; mean signify stand-for
represent; meaning definition sense; define definition mean; difference distinction differ
contrast compare comparison different distinguish; compare comparison versus; similar alike same
identical equal; important significant crucial essential key vital; necessary required needed
essential mandatory obligatory compulsory need must; good great fine nice excellent; best top
ideal optimal finest recommended greatest good; bad poor terrible awful; harmful bad dangerous
damaging unhealthy; dangerous unsafe risky hazardous harmful; safe secure harmless; healthy good;
sick ill unwell; disease illness sickness condition disorder; medicine medication drug pill; pain
ache hurt sore; cure treat remedy heal treatment; symptom sign; cause reason why lead; cause
trigger provoke lead-to bring-about; result outcome effect consequence; effect impact influence
consequence; affect influence impact; fat weight; lose shed drop; thin slim skinny; food meal
dish; eat consume have; cook prepare make; clean wash; dirty filthy; remove take-out take-off
get-out; put place insert add; add include append insert; connect link join hook-up pair attach;
disconnect unlink; install set-up setup; setup set-up configure configuration; uninstall remove;
download get save; upload post; save store keep backup; backup back-up; file document; folder
directory; computer pc machine laptop; laptop notebook computer; program application app software;
website site page webpage; internet web online; wifi wi-fi wireless; email mail e-mail message;
message text sms; screen display monitor; print output; run execute launch operate; execute run
perform; perform do carry-out conduct; do perform make carry-out; function method; work function
operate run; work job task; broken damaged defective faulty; damage harm break hurt; slow
sluggish; crash freeze fail; restart reboot; parameter argument; convert transform change turn
translate; translate translation say; calculate compute work-out figure-out determine find; number
amount quantity count total figure; amount sum quantity total; sum total add; average mean;
percent percentage; multiply times; remaining left leftover; divide split share; speed velocity
pace rate; size dimension; length long; height tall high; weight weigh heavy; width wide; depth
deep; age old; distance far; time duration long; temperature hot heat; date day; year annual;
earliest first; latest newest recent last current most-recent; current present latest now; new
recent; old ancient; often frequently regularly; usually normally typically generally; almost
nearly; about around approximately roughly; about regarding concerning; maybe perhaps possibly;
also too; however but; because since as; fast quickly; soon shortly; now currently presently;
world earth globe; earth world planet; famous popular well-known; popular famous common; common
popular usual; typical normal usual standard; normal usual regular; strange weird odd unusual;
beautiful pretty lovely attractive; ugly unattractive; funny hilarious amusing; joke gag; story
tale; book novel; song track tune; music song; singer vocalist; actor star; author writer; wrote
write author; invent create discover; inventor creator; founder creator; win victory; war conflict
battle; fight battle combat; kill murder slay; murder kill homicide; die death pass-away; dead
deceased; born birth; birthplace born; marry wed married; spouse wife partner; spouse husband
partner; kids children; baby infant newborn; rule law regulation; law legislation statute; legal
lawful allowed permitted; illegal unlawful prohibited; allowed permitted acceptable ok okay legal
possible; crime offence offense; prison jail; police cop; government state; vote ballot; election
vote; have possess own got; contain include have hold; consist made composed; part portion piece
section component; type kind sort category; example instance sample; list enumerate; way method
approach manner technique means; step stage; process procedure; plan strategy scheme; goal aim
objective target purpose; purpose reason point use; idea suggestion tip thought; suggestion
recommendation advice tip; advice tip recommendation guidance; recommend suggest advise; benefit
advantage pro upside perk; disadvantage drawback con downside; feature characteristic property
trait; quality trait; role function part; name title call named; called named known; language
tongue; word term; phrase expression; sentence phrase; text passage; letter character; character
personality; article piece; summary overview summarize summarise; short brief; long lengthy; near
close nearby; far distant; place location spot site; location place position address where; area
region zone; street road; route way path; direction way; car-park parking; petrol gas gasoline
fuel; drive ride; train railway rail; bus coach; stop station; subway metro underground; bicycle
bike cycle; clothes clothing garment outfit; wear put-on; shoes footwear sneakers; present gift;
party celebration; marriage wedding; game match; team squad; coach trainer; exercise workout train
training; dog puppy; cat kitten; animal creature; garden yard; weather forecast; alarm wake-up;
reminder remind; light lamp; bulb light; switch turn change; heat warm; cool chill; volume
loudness; loud noisy; quiet silent; quietly silently; mute silence; play start; pause stop; limit
cap maximum; maximum max most highest upper; minimum min least lowest; highest top maximum most;
biggest largest greatest; smallest littlest; oldest earliest; balance amount; deposit put;
withdraw withdrawal take-out; withdrawal cash-out; exchange swap trade switch; exchange
conversion; currency money; loan borrow credit; mortgage loan; insurance cover coverage policy;
policy rule; free gratis complimentary; fraud scam; fraudulent suspicious; suspicious strange;
stolen theft steal taken; lost missing misplaced lose; missing lost absent; expire expiry
expiration lapse; renew extend renewal; replace substitute swap exchange; replacement new;
replacement substitute; update refresh; track trace follow; tracking status; status state;
pending processing; declined rejected refused; decline reject refuse deny; accept take approve;
agree accept; support accept; support back; available accessible; access reach open; enter input
type key; submit hand-in send; apply application; application request; form document; licence
license; id identification identity; prove proof; proof evidence; security safety; private
confidential; secret hidden; hide conceal; code program; coding programming; programmer developer
coder; developer programmer engineer; bug error defect; debug fix; exception error; string text;
integer number; loop iterate; sort order arrange; order sort sequence; reverse invert; combine
merge join mix; split divide separate; duplicate copy repeated; copy duplicate replicate; unique
distinct; empty blank; null none; check test; compile build; server host; database db; column
field; row record; record entry; library package module; version release; repository repo; undo
revert roll-back; clone copy; memory ram; storage space; space room; disk drive; hard-disk
hard-drive; charge power; power electricity electric electrical; solar sun; moon lunar; sea ocean;
mountain mount; forest woods; brain mind; heart cardiac; tooth teeth dental; dentist dental;
vision sight; sleep rest asleep; tired exhausted fatigued; angry mad furious upset annoyed; calm
relaxed; relax unwind calm; nervous anxious worried; worried concerned; worry concern; stress
pressure; brave courageous fearless; confident sure; sure certain; shy timid; kind nice caring;
mean cruel; rude impolite; polite courteous; lazy idle; hardworking diligent; honest truthful;
humble modest; generous giving; stingy cheap; stupid dumb; foolish silly; crazy mad insane; strong
powerful; religious devout; spiritual religious; moral ethical; fair just; correct right accurate;
wrong incorrect; true correct real; false untrue; real actual true genuine; fake false
counterfeit; problem trouble difficulty; solution fix answer; succeed success; fail failure;
achieve accomplish reach attain; hope wish; love like adore enjoy; hate dislike; prefer favor
favour; favorite favourite preferred; boring dull; exciting thrilling; surprised shocked; alone
lonely; separate apart; deal handle cope; handle deal manage; control manage; prevent avoid stop;
protect guard secure; attack assault; defend protect; hurt injure harm; injury wound; emergency
urgent; urgent immediate; immediately instantly straight-away right-away; ready prepared; prepare
ready; hurry rush; late delayed overdue; rent lease hire; rental rent; hire employ recruit rent;
fire dismiss sack; quit resign leave; leave exit quit depart; remain stay left; continue keep
go-on carry-on; discuss talk; opinion view thought; argue debate; debate discussion; discussion
talk; decide determine; decision choice; option choice alternative; alternative substitute option;
ability able capable; able capable can; possible can feasible; chance probability likelihood odds;
likely probable; danger risk hazard; limit restrict; break violate; investment invest; invest put;
stock share; economy economic; profit gain earnings; debt owe; owe due; expense spending cost;
spend use; earn make; discount reduction deal; voucher coupon code promo; offer deal; postcode zip
zipcode; spam junk; url link web-address; click press tap; press push tap hit; settings
preferences options setting; preference setting; font typeface; color colour; video clip footage;
sound noise audio; headphones earphones headset; tv television telly; series show; artist painter
paint; painting picture; draw sketch; sculpture statue; poem verse; history past; modern
contemporary; era period age; period time; disaster catastrophe; earthquake quake; fire blaze;
explode burst; weapon gun; army military; king monarch ruler; immigrate move emigrate relocate;
citizen national; citizenship nationality; tradition custom; religion faith; prayer pray; holy
sacred; hospital clinic; surgery operation; vaccine jab shot vaccination; fever temperature; allergy
allergic; pregnant pregnancy expecting; mum mom mother mommy; dad father; granny grandmother
grandma; grandpa grandfather granddad; sibling brother; sibling sister; relative family; couple
pair; several some few; many much lots numerous plenty; enough sufficient; enough adequate; only
just solely merely; mainly mostly; completely totally entirely fully; exactly precisely; per each;
every each all; anyone anybody; everyone everybody all; above over; below under beneath; inside in
within into; near by; between among; during while; until till; via through using; owner proprietor;
tenant renter; neighbor neighbour; manual guide handbook instructions; guide tutorial instructions;
guarantee warranty; quote estimate; estimate approximate guess; calendar schedule agenda; schedule
timetable calendar plan; deadline due; opening hours; tip gratuity; restaurant diner eatery place;
drink beverage; smoke smoking; document doc docs; physician doc; break-up broke-up broken-up
breaking-up split-up splits-up splitting-up breaks-up separate split; snap picture photo;
temperature temp; taxi cab minicab; elevator lift; torch flashlight; tap faucet; autumn fall; pants
trousers slacks; parenthesis bracket parentheses; pavement sidewalk footpath; roundabout
traffic-circle rotary; current-account checking-account; railway railroad; round-trip return-ticket
return; emergency-room er casualty; vacuum hoover vacuum-cleaner; sneakers trainers; sweater
pullover jumper jersey; cv resume curriculum-vitae; full-stop period; highway motorway freeway
expressway; cooker stove; hob stovetop; bathroom restroom toilet loo washroom lavatory wc; closet
wardrobe cupboard; rabbit bunny; cat kitty; aunt auntie; rooster cockerel; pig hog; sailor seaman;
disassemble dismantle take-apart; assemble put-together; unclog unblock; collect pick-up picking-up
picked-up; drop-off dropping-off; look-after take-care care; give-up quit stop; turn-down reject
refuse; fill-in fill-out fill-up complete filling-in filling-out filled-in filled-out; shut-down
power-off turn-off switch-off; throw-away throw-out discard dispose bin toss; throw-up vomit puke;
smelly stinky; scary frightening spooky creepy; gorgeous beautiful; yearly annually annual; roughly
approximately about around; post article; rocket arugula; soda pop soft-drink; mince ground-beef
ground-meat minced-meat; dish-soap washing-up-liquid dishwashing-liquid; foil tinfoil tin-foil
aluminum-foil aluminium-foil; sticky-tape sellotape scotch-tape; postal-code zip-code zip postcode;
mobile-phone cell-phone cellphone mobile smartphone phone; drugstore pharmacy chemist; trash-can bin
garbage-can dustbin wastebasket; pence penny; recieve receive; known famous well-known renowned
noted; due owed owe outstanding; veterinarian vet; veteran vet; professor prof; public-transport
public-transportation public-transit; movie-theater movie-theatre cinema; grocery-store supermarket;
gas-station petrol-station filling-station; driving-licence driving-license drivers-license
driver-license; hairdryer hair-dryer blow-dryer blow-drier; washing-machine washer; dryer
tumble-dryer drier; freezer deep-freeze; nightgown nightdress nightie; eyeglasses spectacles glasses
specs; sunglasses shades; raincoat mackintosh; undershirt vest; vest waistcoat; suspenders braces;
tights pantyhose; purse handbag; backpack rucksack knapsack; duvet comforter quilt; cot crib;
pacifier dummy; pram stroller pushchair buggy; timber lumber wood; spanner wrench; plasterboard
drywall; drawing-pin thumbtack; eraser rubber; headteacher principal headmaster; holiday vacation;
bank-holiday public-holiday; christmas xmas; barrister lawyer attorney; redundant laid-off; payslip
paystub pay-stub pay-slip; cheerful upbeat; lookup look-up; login log-on; reboot restart; freeze
hang; laptop notebook; usb-stick flash-drive thumb-drive usb-drive memory-stick; hash-sign hashtag
pound-sign; dictionary dict; integer int; boolean bool; string str; param parameter; arg argument;
func function; var variable; dev developer; admin administrator; spec specification; calc calculate
calculation; approx approximate; est estimate; incl including include; excl excluding exclude; attn
attention; misc miscellaneous; orig original; prev previous; dob birthdate date-of-birth birth; ssn
social-security-number; pic photo; insta instagram; fb facebook; yt youtube; convo conversation;
mins minutes; hrs hours; probs probably; def definitely; obv obviously; prob probably problem; abt
about; tho though; bc because; cuz because; coz because; asap immediately; fave favorite favourite;
info information; deets details; grandkids grandchildren grandchild; granny nan nana; bro brother;
sis sister; hubby husband; missus wife; parents mom-and-dad; newborn baby; youngster youth; elderly
aged seniors; cop police-officer policeman; car-crash car-accident accident crash; stomach tummy
belly abdomen; bum bottom buttocks; bruise contusion; itch itchy; high-blood-pressure hypertension;
low-blood-pressure hypotension; heart-attack myocardial-infarction; flu influenza; painkiller
analgesic pain-reliever; paracetamol acetaminophen tylenol; adrenaline epinephrine; period
menstruation; belly-button navel; collarbone clavicle; kneecap patella; shin shinbone; skull
cranium; windpipe trachea; voice-box larynx; gullet esophagus; womb uterus; salt sodium-chloride;
aspirin acetylsalicylic-acid; co2 carbon-dioxide; h2o water; killer-whale orca; mountain-lion puma
cougar; guinea-pig cavy; groundhog woodchuck; firefly lightning-bug; shrimp prawn; maize corn;
peanut groundnut; capsicum bell-pepper; soybean soya soy; oatmeal porridge; treacle molasses; candy
sweets sweet; lollipop lolly; ice-lolly popsicle; cookie biscuit; crisps chips potato-chips; fries
chips french-fries; takeaway takeout take-out carryout; starter appetizer appetiser; main-course
entree; dessert pudding; jug pitcher; tea-towel dish-towel; frying-pan skillet; baking-tray
baking-sheet; grill broil; ping-pong table-tennis; jogging running run; hike trek; hiking trekking;
push-up press-up; merry-go-round carousel; fancy-dress costume; funfair amusement-park; caravan
trailer camper; flyover overpass; gearbox transmission; gear-stick gearshift; boot trunk; bonnet
hood; aerial antenna; exhaust tailpipe; flat-tire flat-tyre puncture; cinema movies; noon midday;
dusk sunset twilight; dawn sunrise
"""
