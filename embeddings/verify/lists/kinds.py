"""Things of one kind: who asks about one of them does not ask about another.

An entry is `kind: member, member` up to a semicolon; members joined by `=` are the same thing.
Several words are joined with a hyphen.
"""

from typing import Final

KINDS: Final = """
colour: red=crimson=scarlet, blue=navy=azure, green, yellow, orange, purple=violet, pink, brown,
black, white, grey=gray, beige, turquoise, gold, silver; weekday: monday=mon=mondays,
tuesday=tue=tues=tuesdays, wednesday=wed=weds=wednesdays, thursday=thu=thurs=thur=thursdays,
friday=fri=fridays, saturday=sat=saturdays, sunday=sun=sundays; month: january=jan, february=feb,
march, april=apr, may, june=jun, july=jul, august=aug, september=sep=sept, october=oct,
november=nov, december=dec; season: spring, summer, autumn=fall, winter; holiday: christmas=xmas,
easter, thanksgiving, halloween, ramadan, hanukkah, diwali, new-year; part-of-day: morning,
afternoon, evening, night=tonight=overnight, noon=midday, midnight; meal: breakfast, lunch,
dinner=supper, brunch, dessert, snack; direction: north=northern, south=southern, east=eastern,
west=western; period: daily=day, weekly=week=biweekly, monthly=month, quarterly=quarter,
yearly=annual=annually=year, hourly=hour; relative: mother=mom=mum=mommy=mummy, father=dad=daddy,
brother=bro, sister, son, daughter, husband, wife, uncle, aunt=auntie, nephew, niece, cousin,
grandmother=grandma=granny=gran, grandfather=grandpa=granddad=grandad, grandson, granddaughter,
boyfriend, girlfriend, fiance, fiancee, stepmother, stepfather, mother-in-law,
father-in-law; child: baby=newborn=infant,
toddler, teenager=teen, adult; animal: dog=puppy=pup=canine, cat=kitten=kitty=feline,
rabbit=bunny, hamster, goat, sheep=lamb, cow=cattle, pig=hog, horse=pony, chicken=hen, duck, goose,
turkey, parrot, fish, goldfish, shark, whale, dolphin, lion, tiger, bear, wolf, fox, deer, elephant,
giraffe, monkey, gorilla, chimpanzee, snake, lizard, frog, turtle=tortoise, spider, bee, wasp,
ant, mosquito, butterfly, bat, owl, eagle, penguin, crow, pigeon, donkey, camel, kangaroo, panda,
squirrel, leopard, cheetah, jaguar, zebra, hippo, rhino, crocodile, alligator, octopus, crab,
lobster, shrimp, salmon, tuna, trout; fruit: apple, banana, orange, lemon, lime, grape, pear,
peach, plum, cherry, strawberry, raspberry, blueberry, mango, pineapple, melon, watermelon,
avocado, apricot, kiwi, fig, coconut; vegetable: carrot, potato, tomato, onion, garlic, cabbage,
lettuce, spinach, broccoli, cauliflower, cucumber, pepper, pumpkin, bean, pea, corn, celery,
zucchini=courgette, eggplant=aubergine, mushroom, asparagus, kale, beet; food: bread, rice,
pasta=spaghetti, quinoa, couscous, bulgur, barley, millet, buckwheat, polenta,
pizza, burger=hamburger, sandwich, soup, salad, cake, cookie=biscuit, pie,
cheese, butter, yogurt=yoghurt, egg, steak, beef, pork, bacon, ham, lamb, sausage, noodle, sushi,
taco, pancake, waffle, chocolate, omelette, quinoa, oatmeal=porridge, tofu, lentil, muffin,
brownie, icecream; drink: coffee, tea, water, milk, juice, beer, wine, whisky=whiskey, vodka, gin,
rum, soda, cola, lemonade, cocktail, espresso, cappuccino; nutrient: protein, carb=carbohydrate,
fat, sugar, fibre=fiber, sodium, salt, vitamin, calcium, iron, calorie; sport: football, soccer,
basketball, baseball, tennis, golf, cricket, rugby, hockey, volleyball, badminton, boxing,
swimming, cycling, running, skiing, snowboarding, surfing, gymnastics, wrestling, karate, judo,
yoga, pilates; instrument: piano, guitar, violin, cello, drum, flute, trumpet, saxophone,
clarinet, harp, ukulele, banjo, trombone, bass; game: chess, checkers, poker, bridge, monopoly,
scrabble, sudoku; body-part: head, eye, ear, nose, mouth, tooth, tongue, neck, shoulder, arm,
elbow, wrist, hand, finger, thumb, chest, back, stomach=belly=tummy, hip, leg, knee, ankle, foot,
toe, skin, hair, heart, lung, liver, kidney, brain, bone, muscle; illness: flu=influenza, cold,
covid, measles, mumps, malaria, cancer, diabetes, asthma, arthritis, migraine, pneumonia,
bronchitis, allergy, anemia, hepatitis, depression, anxiety, dementia, stroke, epilepsy, eczema,
psoriasis, acne, ulcer; medicine: aspirin, ibuprofen, paracetamol=acetaminophen, penicillin,
insulin, antibiotic, vaccine; doctor: dentist, cardiologist, dermatologist, pediatrician,
psychiatrist, surgeon, optometrist, vet=veterinarian, pharmacist, nurse; profession: accountant,
architect, actor, actress, baker, barber, carpenter, chef=cook, electrician, engineer, farmer,
firefighter=fireman, journalist, judge, lawyer=attorney, librarian, mechanic, nurse, painter,
pilot, plumber, programmer=developer=coder, scientist, secretary, soldier, teacher, translator,
waiter, waitress, writer=author, photographer, musician, economist, historian, organizer,
investor, analyst, auditor, editor, interpreter, banker, dancer, model, detective, butcher,
tailor, hairdresser, gardener, cashier, receptionist, consultant, entrepreneur, politician,
president, mayor, senator, professor, astronaut, biologist, chemist, physicist, mathematician,
psychologist, philosopher, singer, nanny, intern, producer, director, educator, executive,
advisor=adviser; vehicle: car=automobile=auto, bus=coach, train, tram, subway=metro, taxi=cab,
plane=airplane=aeroplane=flight, helicopter, boat, ship, ferry, bicycle=bike,
motorcycle=motorbike, scooter, truck=lorry, van, tractor, rocket, yacht, submarine; device:
phone=smartphone=cellphone=mobile=handset, laptop=notebook, tablet=ipad, desktop, printer,
scanner, router, modem, monitor, keyboard, headphones=headset=earphones, speaker, camera,
watch=smartwatch, tv=television=telly, console, projector, webcam, microphone=mic, charger,
refrigerator=fridge, freezer, oven, microwave, dishwasher, washer=washing-machine, dryer, toaster,
vacuum, kettle; utility: electricity=electric=power, gas, water, internet=broadband, heating,
sewage, rent, mortgage; account: checking=chequing=current, savings=saving, brokerage, retirement;
card: debit, credit, prepaid, gift; card-brand: visa, mastercard, amex=american-express, discover,
maestro; payment: paypal, venmo, zelle, bitcoin, cash, cheque=check, wire, klarna, stripe;
document: passport, visa, license=licence, invoice, receipt, contract, resume=cv, certificate,
diploma, prescription, will, deed; id: username, password=passcode, email=e-mail, pin, address,
avatar; person-detail: name=surname, birthday, age, height, weight, nationality, occupation,
salary, spouse, hometown, gender; measure: length, width, height, depth, weight=mass, volume,
area, perimeter, circumference, diameter, radius, speed=velocity, temperature, pressure, density,
mass, acceleration, force, energy, voltage, resistance, frequency, wavelength, altitude, latitude,
longitude, angle; statistic: mean=average, median, mode, variance, range; shape: circle, square,
triangle, rectangle, pentagon, hexagon, octagon, cube, sphere, cylinder, cone, pyramid, ellipse,
trapezoid, rhombus, parallelogram; arithmetic: addition, subtraction, multiplication, division;
science: physics, chemistry, biology, mathematics=maths=math, geography, history, geology,
astronomy, economics, psychology, sociology, philosophy, law, medicine, engineering, literature,
linguistics, anthropology, statistics, algebra, calculus, geometry, trigonometry; degree:
bachelor=undergraduate, master=masters=mba, phd=doctorate; school: kindergarten,
elementary=primary, middle, secondary, college, university; planet: mercury, venus, earth, mars,
jupiter, saturn, uranus, neptune, pluto, moon, sun; element: hydrogen, helium, carbon, nitrogen,
oxygen, sodium, magnesium, aluminium=aluminum, silicon, phosphorus, sulphur=sulfur, chlorine,
potassium, calcium, iron, nickel, copper, zinc, silver, tin, gold, lead, uranium, lithium, neon,
iodine, platinum, titanium; material: wood=wooden, metal, plastic, glass, paper, leather, cotton,
wool, silk, linen, concrete, brick, stone, steel, granite, marble, ceramic, rubber, nylon,
polyester, bamboo, vinyl; clothing: shirt, t-shirt=tshirt=tee, pants=trousers, jeans, skirt, coat,
jacket, sweater=jumper=pullover, sock, shoe, boot, sandal, hat, cap, scarf, glove, tie, belt,
suit, blouse, shorts, sneaker=trainer, hoodie; jewel: ring, necklace, bracelet, earring, watch;
room: kitchen, bathroom, bedroom, basement, attic, garage, garden, balcony, hallway, office;
furniture: table, chair, sofa=couch, bed, desk, wardrobe, shelf, dresser, mattress, lamp,
carpet=rug, curtain; building: hotel, hospital, school, library, museum, restaurant, cafe, church,
mosque, temple, bank, airport, station, stadium, theatre=theater, cinema, pharmacy=drugstore,
supermarket=grocery, gym, factory, prison=jail, embassy, castle, hostel, motel; weather:
rain=rainy=raining, snow=snowy=snowing, wind=windy, fog=foggy, hail, sunny, cloudy, thunderstorm,
tornado, hurricane, earthquake, flood, drought, tsunami; gender: male=man=men=boy=gentleman,
female=woman=women=girl=lady; religion: christianity=christian, islam=muslim=islamic,
judaism=jewish=jew, hinduism=hindu, buddhism=buddhist, sikhism=sikh, atheism=atheist,
catholic=catholicism, protestant, orthodox, mormon; scripture: bible, quran=koran, torah;
politics: democrat=democratic=democrats, republican=republicans, libertarian, socialist,
communist, fascist; literature: novel, poem, play, essay, comic, biography, memoir; media: book,
movie=film, song, album, podcast, magazine, newspaper, painting, sculpture; file: pdf, word,
excel, csv, json, xml, yaml, html, png, jpg=jpeg, gif, svg, mp3, mp4, wav, zip, txt, docx, xlsx,
markdown; language-code: python, java, javascript=js, typescript=ts, ruby, rust, golang, kotlin,
swift, php, perl, scala, haskell, c++, c#, matlab, fortran, cobol, lua, bash, powershell;
framework: react, angular, vue, svelte, django, flask, rails, spring, laravel, numpy, pandas,
pytorch, tensorflow, express, fastapi; database: mysql, postgresql=postgres, sqlite,
mongodb=mongo, oracle, redis, cassandra, mariadb, elasticsearch, dynamodb, kafka; system: windows,
macos=mac=osx, linux, ubuntu, debian, fedora, android, ios, chromeos; browser: chrome, firefox,
safari, edge, opera, brave; collection: list, tuple, dictionary=dict, set, array, stack, queue,
tree, graph, heap, hashmap, string, integer=int, float, boolean=bool; vcs: git, svn, mercurial;
git: commit, merge, rebase, stash, branch, tag, fork, clone, checkout, cherry-pick; web-method:
get, post, put, patch; cloud: aws=amazon-web-services, azure, gcp; tool: hammer, screwdriver,
drill, saw, wrench, pliers, axe, shovel, knife, scissors; crime: murder, theft, fraud, robbery,
arson, assault, burglary; tax: vat, gst; loan: mortgage, car-loan, student-loan, payday; asset:
stock=share, bond, cryptocurrency=crypto, fund, option, commodity, gold; insurance: life, health,
dental, travel, home, renters, pet; degree-of: first, second, third, fourth, fifth, last; cooking:
boil, fry, bake, roast, grill, steam, poach, microwave, saute; state-of-matter: solid, liquid,
plasma; unit: kilometre=kilometer=km=kilometres=kilometers, mile, metre=meter=metres=meters,
centimetre=centimeter=cm, millimetre=millimeter=mm, inch, foot=feet=ft, yard, kilogram=kg=kilo,
gram=gramme, pound=lb=lbs, ounce=oz, litre=liter, gallon, pint, quart, celsius=centigrade,
fahrenheit, kelvin, tablespoon=tbsp, teaspoon=tsp, acre, hectare, watt, volt, joule, newton; byte:
kilobyte=kb, megabyte=mb, gigabyte=gb, terabyte=tb; currency: dollar=usd=buck, euro=eur,
sterling=gbp, yen=jpy, rupee=inr, yuan=rmb=cny, franc=chf, peso, ruble=rouble, won, krona;
planet-part: ocean, sea, lake, river, mountain, desert, forest, island, volcano; continent:
europe=european, asia=asian, africa=african, america, australia, antarctica, oceania; sense:
sight, hearing, smell, taste, touch; emotion: anger=angry, fear, joy, sadness, disgust,
jealousy=jealous, envy, guilt, shame, pride; relationship: friend, boss, colleague=coworker,
neighbour=neighbor, roommate, landlord, tenant, teacher, student; plant: rose, tulip, orchid,
cactus, lavender, basil, mint, fern, ivy, oak, pine, maple, bamboo; social: facebook, instagram,
twitter, tiktok, linkedin, snapchat, whatsapp, telegram, reddit, youtube, pinterest, discord,
signal, slack, teams, zoom, skype; renewing: reset, change=update
"""
